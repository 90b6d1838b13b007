package engine

import (
	"iter"
)

const defaultPage = 100

// page cuts one page out of an ordered sequence. A token is the key of the last item of the page before,
// so that items which appear in between shift nothing. Items that are listed do not vanish.
func page[K, T any](seq iter.Seq2[K, T], total int, p Page, key func(T) string) (out []T, next string) {
	size := p.Size
	if size <= 0 {
		size = defaultPage
	}
	out = make([]T, 0, min(size, total))
	skipping := p.Token != ""
	for _, item := range seq {
		if skipping {
			skipping = key(item) != p.Token
			continue
		}
		if len(out) == size {
			return out, key(out[size-1])
		}
		out = append(out, item)
	}
	return out, ""
}
