package rpc

import (
	"encoding/hex"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/internal/golden"
	"github.com/vrnic/vrnic/shm/abi"
)

// The octets of each message, every number in it another one, are those of the first release of
// this version of the ABI: what makes other octets is another version. A message that has grown has
// them for each minor version.
func TestGoldenMessages(t *testing.T) {
	zeros := regexp.MustCompile(`(00){16,}`)
	var lines []string
	for _, m := range messages {
		v := reflect.New(reflect.TypeOf(m).Elem())
		n := uint64(0)
		fill(v.Elem(), &n)
		size := 0
		for minor := range uint16(abi.Minor + 1) {
			msg := AppendFor(nil, Header{Op: 0x1234, Seq: 7, Status: -2}, v.Interface().(Message), minor)
			if len(msg) == size {
				continue // as before
			}
			size = len(msg)
			text := zeros.ReplaceAllStringFunc(hex.EncodeToString(msg), func(z string) string {
				return fmt.Sprintf("(%d zeros)", len(z)/2)
			})
			name := v.Elem().Type().Name()
			if minor != 0 {
				name += fmt.Sprint(" since ", minor)
			}
			lines = append(lines, name+" "+text+"\n")
		}
	}
	slices.Sort(lines)
	golden.Check(t, "testdata/messages.txt", strings.Join(lines, ""))
}

// fill gives each number in v another value; of an array of octets, the first and the last.
func fill(v reflect.Value, n *uint64) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Array:
		for i := range v.Len() {
			if v.Type().Elem().Kind() != reflect.Uint8 || i == 0 || i == v.Len()-1 {
				fill(v.Index(i), n)
			}
		}
	case reflect.Int32:
		v.SetInt(-int64(*n * 0x010203))
	case reflect.Uint8:
		v.SetUint(*n & 0xff)
	default:
		v.SetUint(*n*0x0102030405060708>>(64-8*v.Type().Size()) | *n)
	}
}
