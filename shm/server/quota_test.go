package server

import "testing"

func TestLimitsSet(t *testing.T) {
	l := DefaultLimits()
	if l.PDs != 256 || l.MRs != 65536 || l.Mems != 64 || l.MemBytes != 4<<30 || l.CQs != 4096 ||
		l.QPs != 1024 || l.Channels != 2048 ||
		l.CMChannels != 2048 || l.CMIDs != 4096 || l.CMEvents != 1024 || l.Depth != 16384 ||
		l.CQDepth != 1<<19 || l.RingBytes != 256<<20 || l.SessionsPerUID != 64 ||
		l.Sessions != 256 || l.HelloMS != 5000 {
		t.Errorf("defaults %+v", l)
	}
	seen := map[string]bool{}
	for i := range LimitTable {
		in := &LimitTable[i]
		if seen[in.Name] || in.Help == "" || l.Get(in) != in.Default {
			t.Errorf("limit %q", in.Name)
		}
		seen[in.Name] = true
		if err := l.Set(in.Name + "=3"); err != nil || l.Get(in) != 3 {
			t.Errorf("%s=3: %v, %d", in.Name, err, l.Get(in))
		}
	}
	for _, bad := range []string{"", "qps", "qps=", "qps=0", "qps=-1", "qps=x", "cqs=4097",
		"nosuch=1"} {
		if err := l.Set(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
