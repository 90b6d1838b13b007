package aws

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"substrate/coordinator/provision/cloud"
)

// startLen is how much of an answer says whether it is EC2's.
const startLen = 512

// ours reports whether an answer begins as EC2's do, with an element of a response. The SDK takes any XML, and a page of a proxy's is a list without
// instances to it.
func ours(start []byte) bool {
	start = bytes.TrimSpace(start)
	if rest, declared := bytes.CutPrefix(start, []byte("<?xml")); declared {
		_, start, _ = bytes.Cut(rest, []byte("?>"))
		start = bytes.TrimSpace(start)
	}
	end := bytes.IndexAny(start, " \t\r\n>")
	return end > 0 && start[0] == '<' && bytes.HasSuffix(start[:end], []byte("Response"))
}

// checked has answers bounded, and those that are not EC2's refused.
func checked(stack *middleware.Stack) error {
	return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("CheckedAnswer", func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (
		out middleware.DeserializeOutput, meta middleware.Metadata, err error) {
		out, meta, err = next.HandleDeserialize(ctx, in)
		resp, ok := out.RawResponse.(*smithyhttp.Response)
		if err != nil || !ok || resp.Body == nil {
			return out, meta, err
		}
		body := cloud.Bounded(resp.Body)
		resp.Body = body
		if resp.StatusCode != http.StatusOK {
			return out, meta, nil
		}
		start, err := io.ReadAll(io.LimitReader(body, startLen))
		if err != nil {
			return out, meta, err
		}
		if !ours(start) {
			return out, meta, fmt.Errorf("the answer is not EC2's but begins with %.60q: is there a proxy, or another endpoint?", start)
		}
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(start), body), body}
		return out, meta, nil
	}), middleware.After)
}
