package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestCommentsNamePagesThatExist: a page that a comment points to is there, from the root or from the
// file's own folder.
func TestCommentsNamePagesThatExist(t *testing.T) {
	page := regexp.MustCompile(`[A-Za-z0-9_./-]+\.md\b`)
	for _, s := range sources(t) {
		for _, group := range s.file.Comments {
			for _, name := range page.FindAllString(group.Text(), -1) {
				found := false
				for _, dir := range []string{"", s.pkg} {
					_, err := os.Stat(filepath.Join("..", "..", dir, name))
					found = found || err == nil
				}
				if !found {
					t.Errorf("%s names %s, which is not in the repository", s.fset.Position(group.Pos()), name)
				}
			}
		}
	}
}
