package hwinfo

import "testing"

// TestModaliasWithoutItsFile: what the kernel would print is made from the values, all of them or not at all.
func TestModaliasWithoutItsFile(t *testing.T) {
	whole := map[string]string{"vendor": "0x10de\n", "device": "0x2330\n", "class": "0x030200\n", "subsystem_vendor": "0x10de\n", "subsystem_device": "0x16c1\n"}
	tests := map[string]struct {
		change map[string]string // "" takes the file away
		want   string
	}{
		"all values":              {nil, "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00"},
		"its own file wins":       {map[string]string{"modalias": "pci:v000010DEd*\n"}, "pci:v000010DEd*"},
		"the file is empty":       {map[string]string{"modalias": "\n"}, "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00"},
		"no subsystem":            {map[string]string{"subsystem_device": ""}, ""},
		"a subsystem that is odd": {map[string]string{"subsystem_vendor": "10de\n"}, ""},
		"no class":                {map[string]string{"class": ""}, ""},
		"a dead device":           {map[string]string{"vendor": "0xffff\n", "device": "0xffff\n", "class": "0xffffff\n"}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			dir := pciDir + "/0000:01:00.0/"
			for file, text := range whole {
				if other, ok := tt.change[file]; ok {
					text = other
				}
				if text != "" {
					put(t, root, dir+file, []byte(text))
				}
			}
			if text, ok := tt.change["modalias"]; ok {
				put(t, root, dir+"modalias", []byte(text))
			}
			f, w := Read(root)
			if len(f.PCI) != 1 || f.PCI[0].Modalias != tt.want {
				t.Errorf("got %s, %v", asJSON(t, f), w)
			}
			checkSnapshot(t, root, f)
		})
	}
}
