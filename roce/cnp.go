package roce

import "github.com/vrnic/vrnic/roce/packet"

// cnpPayload is what a congestion notification packet carries behind its BTH.
const cnpPayload = 16

// AppendCNP adds a congestion notification packet to b, all but the ICRC: for dest, the queue pair
// that has sent packets which were marked on their way.
func AppendCNP(b []byte, dest packet.QPN) []byte {
	h := packet.Header{Opcode: packet.CNP, PKey: packet.DefaultPKey, BECN: true, Dest: dest}
	return append(h.Append(b), make([]byte, cnpPayload)...)
}
