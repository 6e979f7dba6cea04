package peertest

// TsharkOptions has tshark look at SCTP: its checksums, and no other protocol of it. Ports that a
// client may have drawn are those of other protocols to tshark.
func TsharkOptions() []string {
	options := []string{"-o", "sctp.checksum:CRC 32c"}
	for _, other := range []string{"dlm3", "e1ap", "e2ap", "f1ap", "m2ap", "m3ap", "ngap", "rua",
		"s1ap", "sbcap", "sgsap", "tls", "x2ap", "xnap"} {
		options = append(options, "--disable-protocol", other)
	}
	return options
}
