package capture

import (
	"bytes"
	"testing"

	"github.com/vrnic/vrnic/iwarp"
)

// Parts of a segment have its octets where it has them, and the last of them alone is last.
func TestCutSegment(t *testing.T) {
	payload := bytes.Repeat([]byte("0123456789abcdef"), 200)
	tagged := make([]byte, iwarp.TaggedHeaderLen)
	tagged[0], tagged[1], tagged[13] = 0xc1, 0x40, 7 // TO 7
	untagged := make([]byte, iwarp.UntaggedHeaderLen)
	untagged[0], untagged[1], untagged[17] = 0x41, 0x43, 9 // MO 9
	for name, header := range map[string][]byte{"tagged": tagged, "untagged": untagged} {
		for _, most := range []int{len(header) + 1000, len(header) + 3199, len(header) + 3200, 5000} {
			var got []byte
			parts := 0
			cutSegment(append(bytes.Clone(header), payload...), most, func(part []byte) {
				parts++
				var at uint64
				if name == "tagged" {
					at = iwarp.TaggedHeader(part).TO() - 7
				} else {
					at = uint64(iwarp.UntaggedHeader(part).MO()) - 9
				}
				if at != uint64(len(got)) || len(part) > most {
					t.Errorf("%s: a part of %d octets is at %d, want %d", name, len(part), at, len(got))
				}
				got = append(got, part[len(header):]...)
				if last := iwarp.DDPControl(part[0]).Last(); last != (len(got) == len(payload)) {
					t.Errorf("%s: behind %d octets last is %v", name, len(got), last)
				}
			})
			want := (len(payload) + most - len(header) - 1) / (most - len(header))
			if !bytes.Equal(got, payload) || parts != want {
				t.Errorf("%s: %d parts of at most %d, want %d", name, parts, most, want)
			}
		}
	}
	n := 0
	cutSegment(tagged, 128, func(part []byte) { n += len(part) })
	if n != len(tagged) {
		t.Errorf("of a segment without octets there are %d", n)
	}
}
