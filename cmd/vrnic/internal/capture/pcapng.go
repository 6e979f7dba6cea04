package capture

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// A Name is what a device's address is called.
type Name struct {
	Addr netip.Addr
	Name string
}

// A Section is what a file says of itself.
type Section struct {
	Version string // of vrnic
	Ports   []Port
	Names   []Name
	Filter  string
	Snap    int
}

// A Writer writes pcapng.
type Writer struct {
	*pcapgo.NgWriter
	n     int // packets that were captured
	ports int
	begun time.Time
}

// NewWriter begins a file: the section, an interface for each port, and the names.
func NewWriter(w io.Writer, s *Section) (*Writer, error) {
	p := &Writer{ports: len(s.Ports), begun: time.Now()}
	for i, port := range s.Ports {
		about := fmt.Sprintf("port %s (%s) of vrnic", port.Name, port.Kind)
		if port.Kind == "stack" {
			about = "device " + port.Name + " of vrnic"
		}
		is := pcapgo.NgInterface{Name: port.Name, Description: about, Filter: s.Filter,
			LinkType: layers.LinkTypeEthernet, TimestampResolution: 9, SnapLength: uint32(s.Snap)}
		var err error
		if i == 0 {
			p.NgWriter, err = pcapgo.NewNgWriterInterface(w, is, pcapgo.NgWriterOptions{
				SectionInfo: pcapgo.NgSectionInfo{Hardware: runtime.GOARCH, OS: runtime.GOOS,
					Application: "vrnic " + s.Version}})
		} else {
			_, err = p.AddInterface(is)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := p.Flush(); err != nil {
		return nil, err
	}
	_, err := w.Write(names(s.Names))
	return p, err
}

// names is a name resolution block, which the library reads and does not write (pcapng, section
// 4.5).
func names(list []Name) []byte {
	const (
		block      = 4
		recordIPv4 = 1
		recordIPv6 = 2
	)
	le := binary.LittleEndian
	var body []byte
	for _, n := range list {
		kind, addr := uint16(recordIPv6), n.Addr.AsSlice()
		if len(addr) == 4 {
			kind = recordIPv4
		}
		value := append(append(addr, n.Name...), 0)
		body = le.AppendUint16(body, kind)
		body = le.AppendUint16(body, uint16(len(value)))
		body = append(body, value...)
		body = append(body, make([]byte, -len(value)&3)...)
	}
	body = append(body, 0, 0, 0, 0) // nrb_record_end; no options
	length := uint32(len(body) + 12)
	b := le.AppendUint32(nil, block)
	b = le.AppendUint32(b, length)
	return le.AppendUint32(append(b, body...), length)
}

// Packet writes p with its comments.
func (w *Writer) Packet(p *Packet, comments []string) error {
	flags := &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionOutbound}
	if p.In {
		flags.Direction = pcapgo.NgEpbFlagDirectionInbound
	}
	if !p.MadeUp {
		w.n++
	}
	return w.WritePacketWithOptions(gopacket.CaptureInfo{Timestamp: p.Time, Length: p.Len,
		CaptureLength: len(p.Data), InterfaceIndex: p.Port}, p.Data,
		pcapgo.NgPacketOptions{Comments: comments, Flags: flags})
}

// End ends the file: how many packets were lost is told with the first interface, of all.
func (w *Writer) End(dropped uint64) error {
	if err := w.WriteInterfaceStats(0, pcapgo.NgInterfaceStatistics{LastUpdate: time.Now(),
		StartTime: w.begun, EndTime: time.Now(), PacketsReceived: uint64(w.n) + dropped,
		PacketsDropped: dropped}); err != nil {
		return err
	}
	return w.Flush()
}
