// Package torture runs cases of what peers may do wrong, and right, against an endpoint of which no
// more is known than its address, and reports what has come of them. Each case has the requirements
// of docs/conformance.md that it is about, and the answer that they want. The packages below have
// the cases: iwarp, roce and sctp.
package torture
