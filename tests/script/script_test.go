package script

import (
	"flag"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"substrate/tests/cluster"
)

var update = flag.Bool("update", false, "rewrite the files that stories compare with")

func TestMain(m *testing.M) { os.Exit(cluster.Main(m)) }

// TestStories runs every story. Besides testscript's own commands a story has those of commands().
func TestStories(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata", UpdateScripts: *update, RequireUniqueNames: true, Cmds: commands(),
		Setup: func(env *testscript.Env) error {
			root, err := repository()
			if err != nil {
				return err
			}
			env.Values[storyKey{}] = &story{tb: env.T().(testing.TB)}
			for name, value := range map[string]string{
				"PATH":            programs() + string(os.PathListSeparator) + os.Getenv("PATH"),
				"REPOSITORY":      root,
				"HOME":            env.WorkDir,
				"XDG_CONFIG_HOME": env.WorkDir + "/.config",
				"LC_ALL":          "C",
			} {
				env.Setenv(name, value)
			}
			return nil
		},
	})
}
