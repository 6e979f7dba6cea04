// Package roce has the cases of RoCEv2: what peers may do wrong, and right, with packets of a
// reliable connection and with messages of the connection manager, and what an endpoint has to
// answer.
//
// Nothing here needs to know a key of the endpoint's memory: of a Write and a Read of nothing the
// key is not looked at, and so these are always allowed.
package roce
