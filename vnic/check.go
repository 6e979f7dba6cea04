package vnic

import "github.com/vrnic/vrnic/rdma"

// CheckSGEs says what a work request on a QP of pd that names sges would be refused for now, with
// WCLocProt; write: if it is written there. Unlike the rest of the package it may be called from
// RecvQueue.Next: a queue that puts other memory in the place of what was posted must not hide that.
func (pd *PD) CheckSGEs(sges []rdma.SGE, write bool) error {
	for _, s := range sges {
		if _, err := pd.localMR(s, write, pd.hint.Load()); err != nil {
			return err
		}
	}
	return nil
}
