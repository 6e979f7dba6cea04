// Package rocetest has recordings of RoCEv2 for tests.
package rocetest

import (
	"embed"
	"encoding/binary"
	"fmt"
	"io/fs"
	"testing"

	"github.com/vrnic/vrnic/roce/packet"
)

//go:embed testdata/*.pcap
var recordings embed.FS

// Recordings are the files of rxe's packets that there are: testdata/README.md.
func Recordings(t testing.TB) []string {
	t.Helper()
	names, err := fs.Glob(recordings, "testdata/*.pcap")
	if err != nil || len(names) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	return names
}

// Recording is what is in one of Recordings: a little-endian pcap file of Ethernet frames.
func Recording(t testing.TB, name string) []byte {
	t.Helper()
	b, err := recordings.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Packets returns the RoCEv2 packets of one of Recordings, from the IP header to the end of the IP
// packet.
func Packets(t testing.TB, name string) (packets [][]byte) {
	t.Helper()
	b := Recording(t, name)
	if len(b) < 24 || binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 ||
		binary.LittleEndian.Uint32(b[20:]) != 1 {
		t.Fatalf("%s: not a pcap file of Ethernet frames", name)
	}
	for b = b[24:]; len(b) >= 16; {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		if len(b) < 16+n {
			t.Fatalf("%s: cut", name)
		}
		if ip, err := roceOf(b[16 : 16+n]); err == nil {
			packets = append(packets, ip)
		}
		b = b[16+n:]
	}
	return packets
}

// roceOf returns the IP packet of a frame with UDP to Port.
func roceOf(frame []byte) ([]byte, error) {
	ip := frame[14:]
	var head, total int
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		head, total = int(ip[0]&0xf)*4, int(binary.BigEndian.Uint16(ip[2:]))
		if ip[9] != 17 {
			return nil, fmt.Errorf("protocol %d", ip[9])
		}
	case 0x86dd:
		head, total = 40, 40+int(binary.BigEndian.Uint16(ip[4:]))
		if ip[6] != 17 {
			return nil, fmt.Errorf("next header %d", ip[6])
		}
	default:
		return nil, fmt.Errorf("not IP")
	}
	if port := binary.BigEndian.Uint16(ip[head+2:]); port != packet.Port {
		return nil, fmt.Errorf("port %d", port)
	}
	return ip[:total], nil
}

// Datagram is what the UDP datagram of an IP packet carries.
func Datagram(ip []byte) []byte {
	if ip[0]>>4 == 6 {
		return ip[48:]
	}
	return ip[int(ip[0]&0xf)*4+8:]
}
