// Two goroutines of a program in Go send each other a message, by way of cgo.
package main

// #cgo LDFLAGS: -lrdmacm -libverbs
// #include <stdlib.h>
// #include <string.h>
// #include <rdma/rdma_cma.h>
// #include <rdma/rdma_verbs.h>
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

const length = 4096

func check(what string, failed bool, err error) {
	if failed {
		fmt.Println(what, err)
		os.Exit(1)
	}
}

// endpoint is an id of rdma_cm with a QP, or one that is to listen.
func endpoint(addr, port string, flags C.int) *C.struct_rdma_cm_id {
	hints := C.struct_rdma_addrinfo{ai_flags: flags, ai_port_space: C.RDMA_PS_TCP}
	attr := C.struct_ibv_qp_init_attr{sq_sig_all: 1}
	attr.cap.max_send_wr, attr.cap.max_recv_wr = 4, 4
	attr.cap.max_send_sge, attr.cap.max_recv_sge = 1, 1
	var info *C.struct_rdma_addrinfo
	node, service := C.CString(addr), C.CString(port)
	ret, err := C.rdma_getaddrinfo(node, service, &hints, &info)
	check("rdma_getaddrinfo", ret != 0, err)
	var id *C.struct_rdma_cm_id
	ret, err = C.rdma_create_ep(&id, info, nil, &attr)
	check("rdma_create_ep", ret != 0, err)
	C.rdma_freeaddrinfo(info)
	return id
}

// memory is registered: C's, since Go's may move.
func memory(id *C.struct_rdma_cm_id) (unsafe.Pointer, *C.struct_ibv_mr) {
	p := C.calloc(1, length)
	mr, err := C.rdma_reg_msgs(id, p, length)
	check("rdma_reg_msgs", mr == nil, err)
	return p, mr
}

func client(addr, port string) {
	id := endpoint(addr, port, 0)
	p, mr := memory(id)
	C.memset(p, 42, length)
	ret, err := C.rdma_connect(id, nil)
	check("rdma_connect", ret != 0, err)
	ret, err = C.rdma_post_send(id, nil, p, length, mr, 0)
	check("rdma_post_send", ret != 0, err)
	var wc C.struct_ibv_wc
	n, err := C.rdma_get_send_comp(id, &wc)
	check("rdma_get_send_comp", n != 1 || wc.status != C.IBV_WC_SUCCESS, err)
}

func main() {
	addr, port := os.Args[1], os.Args[2]
	listener := endpoint(addr, port, C.RAI_PASSIVE)
	ret, err := C.rdma_listen(listener, 0)
	check("rdma_listen", ret != 0, err)
	sent := make(chan bool)
	go func() { client(addr, port); close(sent) }()
	var id *C.struct_rdma_cm_id
	ret, err = C.rdma_get_request(listener, &id)
	check("rdma_get_request", ret != 0, err)
	p, mr := memory(id)
	ret, err = C.rdma_post_recv(id, nil, p, length, mr)
	check("rdma_post_recv", ret != 0, err)
	ret, err = C.rdma_accept(id, nil)
	check("rdma_accept", ret != 0, err)
	var wc C.struct_ibv_wc
	n, err := C.rdma_get_recv_comp(id, &wc)
	check("rdma_get_recv_comp", n != 1 || wc.status != C.IBV_WC_SUCCESS, err)
	for _, b := range unsafe.Slice((*byte)(p), length) {
		check("what has come", b != 42, nil)
	}
	<-sent
	fmt.Println("all done")
}
