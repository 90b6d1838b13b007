package expr

import (
	"errors"
	"reflect"
	"strings"

	"github.com/expr-lang/expr/vm"
)

// truth evaluates a true-or-false expression by the rules of conditions.
func (l *language) truth(src string, env *NodeEnv) (any, error) {
	c, err := l.condition(src)
	if err != nil {
		return nil, err
	}
	switch out := c.Eval(env); out.Value {
	case True, False:
		return out.Value == True, nil
	case Failed:
		return nil, errors.New(out.Err)
	}
	return nil, nil
}

func runAny(m *vm.VM, p *vm.Program, env any) (any, error) {
	out, err := run(m, p, env)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// groupValue is the present facts of a group when the source is nothing but its name.
func (d *dialect) groupValue(src string, env *NodeEnv) map[string]any {
	group := strings.TrimSpace(src)
	f := d.fields[group]
	if f == nil || !f.group() || group == "modalias" {
		return nil
	}
	out := map[string]any{}
	for tag, below := range f.below {
		if v, ok := below.name.at(reflect.ValueOf(env)); ok && below.name.reads&env.absent == 0 {
			out[tag] = v.Interface()
		}
	}
	return out
}
