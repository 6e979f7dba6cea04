package fault

import "testing"

// FuzzParse: each fault that is taken can happen, and its line says the same again.
func FuzzParse(f *testing.F) {
	f.Add("a/7 send terminate 0/1/0x02 at 3s for 1m\na device port_down for 2s\na recv nak access")
	f.Add("vrnic0 reg_mr ENOMEM after 3 count 2 percent 50%\n# none\nvrnic1 create_qp EAGAIN")
	f.Add("/7 send terminate 0/1/0") // of no device
	f.Fuzz(func(t *testing.T, s string) {
		all, err := Parse(s)
		if err != nil {
			return
		}
		if len(all) == 0 || len(all) > maxFaults {
			t.Fatalf("%d faults", len(all))
		}
		for _, one := range all {
			if one.Device == "" || one.How == "" || !(one.Share > 0 && one.Share <= 1) {
				t.Fatalf("%+v", one)
			}
			again, err := Parse(one.line)
			if err != nil || len(again) != 1 || again[0] != one {
				t.Fatalf("%+v, and then %+v, %v", one, again, err)
			}
		}
	})
}
