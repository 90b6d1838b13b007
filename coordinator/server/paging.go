package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"substrate/coordinator"
)

// A page token says after which item a page goes on. What leaves the API carries a check of the list that it belongs
// to, so that one of another list, of other filters or of nobody's is refused instead of meaning some page.
const (
	pageTokenField     = "page_token"
	nextPageTokenField = "next_page_token"
	pageSizeField      = "page_size"
	pageCheckBytes     = 8
	maxPageToken       = 4 << 10 // bytes
)

// pageList names a list: the RPC with all that it is asked but the page.
func pageList(method string, req protoreflect.Message) ([]byte, error) {
	asked := proto.Clone(req.Interface()).ProtoReflect()
	for _, name := range []protoreflect.Name{pageTokenField, pageSizeField} {
		if f := asked.Descriptor().Fields().ByName(name); f != nil {
			asked.Clear(f)
		}
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(asked.Interface())
	if err != nil {
		return nil, fmt.Errorf("cannot encode a request: %w", err)
	}
	return append([]byte(method+"\x00"), data...), nil
}

func pageCheck(list []byte, after string) []byte {
	sum := sha256.Sum256(append(append([]byte(nil), list...), after...))
	return sum[:pageCheckBytes]
}

// sealPageToken is a token as it leaves the API.
func sealPageToken(list []byte, after string) string {
	return base64.RawURLEncoding.EncodeToString(append(pageCheck(list, after), after...))
}

// openPageToken reads what sealPageToken made for the same list.
func openPageToken(list []byte, token string) (after string, ok bool) {
	if len(token) > maxPageToken {
		return "", false
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(raw) <= pageCheckBytes {
		return "", false
	}
	after = string(raw[pageCheckBytes:])
	return after, subtle.ConstantTimeCompare(raw[:pageCheckBytes], pageCheck(list, after)) == 1
}

// openPage puts the position of a page's token in the token's place. list is nil where a request asks for no page.
func openPage(method string, req any) (list []byte, err error) {
	m, ok := req.(proto.Message)
	if !ok {
		return nil, nil
	}
	r := m.ProtoReflect()
	f := r.Descriptor().Fields().ByName(pageTokenField)
	if f == nil {
		return nil, nil
	}
	if list, err = pageList(method, r); err != nil {
		return nil, err
	}
	token := r.Get(f).String()
	if token == "" {
		return list, nil
	}
	after, ok := openPageToken(list, token)
	if !ok {
		return nil, coordinator.Errorf(coordinator.ErrInvalid, deed(method), "page token %.40q is not of this list with these filters", token).
			WithHint("send next_page_token of the page before, with the same filters, or none for the first page")
	}
	r.Set(f, protoreflect.ValueOfString(after))
	return list, nil
}

// sealPage has an answer name the next page by a token of the list.
func sealPage(list []byte, resp any) {
	m, ok := resp.(proto.Message)
	if !ok || list == nil {
		return
	}
	r := m.ProtoReflect()
	if f := r.Descriptor().Fields().ByName(nextPageTokenField); r.IsValid() && f != nil && r.Get(f).String() != "" {
		r.Set(f, protoreflect.ValueOfString(sealPageToken(list, r.Get(f).String())))
	}
}
