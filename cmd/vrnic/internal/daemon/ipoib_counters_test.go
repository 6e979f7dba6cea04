package daemon

import (
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/ipoib/overroce"
)

// `vrnic show ipoib` has each counter of an interface's drops under a name of its own.
func TestIPoIBDropNames(t *testing.T) {
	names := map[string]string{
		"DropUnknownType": "drop_unknown_type", "DropMalformed": "drop_malformed",
		"DropTooBig": "drop_too_big", "DropUnresolved": "drop_unresolved",
		"DropWaiting": "drop_waiting", "DropNotJoined": "drop_not_joined",
		"DropConnected": "drop_not_for_connections", "DropForeign": "drop_foreign_address",
		"DropNeighbours": "drop_neighbours", "DropGroups": "drop_groups",
		"NoBuffer": "drop_no_buffer", "NoRoute": "drop_no_route", "Refused": "drop_refused",
		"Host": "drop_host",
	}
	rest := maps.Clone(names)
	var info overroce.Info
	for _, counters := range []reflect.Value{reflect.ValueOf(&info.Stats).Elem(),
		reflect.ValueOf(&info.Drops).Elem()} {
		for n := range counters.NumField() {
			name := counters.Type().Field(n).Name
			if counters.Type() != reflect.TypeFor[overroce.Drops]() && !strings.HasPrefix(name, "Drop") {
				continue
			}
			counters.Field(n).SetUint(7)
			row := reflect.ValueOf(newIPoIBRow(&IPoIBSpec{}, &info))
			counters.Field(n).SetUint(0)
			for k := range row.NumField() {
				key := row.Type().Field(k).Tag.Get("json")
				if is := row.Field(k).CanUint() && row.Field(k).Uint() == 7; is != (key == names[name]) {
					t.Errorf("%s: %s is %v", name, key, row.Field(k))
				}
			}
			delete(rest, name)
		}
	}
	if len(rest) != 0 {
		t.Errorf("nobody counts %v", rest)
	}
}
