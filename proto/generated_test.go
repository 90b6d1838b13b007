package proto

import (
	"testing"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"substrate/proto/agentv1"
	"substrate/proto/apiv1"
)

// TestGeneratedCodeIsCurrent compiles the .proto files and compares them with what the generated code says.
func TestGeneratedCodeIsCurrent(t *testing.T) {
	generated := []protoreflect.FileDescriptor{
		agentv1.File_agentv1_agent_proto, apiv1.File_apiv1_config_proto, apiv1.File_apiv1_identity_proto,
		apiv1.File_apiv1_nodes_proto, apiv1.File_apiv1_workflows_proto, apiv1.File_apiv1_federation_proto,
	}
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{"."}}),
	}
	for _, want := range generated {
		files, err := compiler.Compile(t.Context(), want.Path())
		if err != nil {
			t.Fatal(err)
		}
		have := strip(protodesc.ToFileDescriptorProto(files[0]))
		if !proto.Equal(have, strip(protodesc.ToFileDescriptorProto(want))) {
			t.Errorf("%s has changed since its code was generated: run make proto", want.Path())
		}
	}
}

// strip leaves out what compilers spell differently and no program sees.
func strip(f *descriptorpb.FileDescriptorProto) *descriptorpb.FileDescriptorProto {
	f.SourceCodeInfo = nil
	return f
}
