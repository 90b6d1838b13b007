package engine

// Page asks for at most Size items after Token ("" from the start).
type Page struct {
	Size  int
	Token string
}

const defaultPage = 100

func (p Page) size() int {
	if p.Size <= 0 {
		return defaultPage
	}
	return p.Size
}

// page cuts one page out of an ordered list. key gives an item's token; passed tells whether an item stands
// at or before a token, so that a page goes on at the right place although the token's own item has left
// the list in between.
func page[T any](items []T, p Page, key func(T) string, passed func(item T, token string) bool) (out []T, next string) {
	size := p.size()
	for _, item := range items {
		if p.Token != "" && passed(item, p.Token) {
			continue
		}
		if len(out) == size {
			return out, key(out[size-1])
		}
		out = append(out, item)
	}
	return out, ""
}
