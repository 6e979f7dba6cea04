package k8s

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/unixsocket"
)

// kubeletSocket is where the kubelet hears of plugins, beside their sockets.
const kubeletSocket = "kubelet.sock"

// patience bounds how long the kubelet takes to answer.
const patience = 10 * time.Second

// An endpoint is a resource as the kubelet knows it: served at a socket, and registered.
type endpoint struct {
	*resource
	dir string

	server *grpc.Server  // nil: the kubelet does not know it
	served chan struct{} // closed when it is no more
	own    os.FileInfo   // the socket
	with   os.FileInfo   // the kubelet's
}

func (e *endpoint) socket() string {
	return filepath.Join(e.dir, strings.ReplaceAll(e.name, "/", "-")+".sock")
}

// current says whether the kubelet still knows it. One that starts anew has another socket, and
// removes all others.
func (e *endpoint) current() bool {
	return e.server != nil && same(e.socket(), e.own) && same(filepath.Join(e.dir, kubeletSocket),
		e.with)
}

// same says whether a file is the one that it was: numbers of files are used again.
func same(file string, was os.FileInfo) bool {
	now, err := os.Lstat(file)
	return err == nil && os.SameFile(now, was) && now.ModTime().Equal(was.ModTime())
}

// begin serves and registers.
func (e *endpoint) begin(ctx context.Context) (err error) {
	kubelet := filepath.Join(e.dir, kubeletSocket)
	if e.with, err = os.Lstat(kubelet); err != nil {
		return fmt.Errorf("no kubelet: %w", err)
	}
	l, err := unixsocket.Listen(e.socket())
	if err != nil {
		return fmt.Errorf("%s: %w", e.socket(), err)
	}
	e.server, e.served = grpc.NewServer(), make(chan struct{})
	v1beta1.RegisterDevicePluginServer(e.server, e.resource)
	go func(s *grpc.Server, served chan<- struct{}) {
		defer close(served)
		_ = s.Serve(l) // what has failed is no longer current: the socket is gone
	}(e.server, e.served)
	if e.own, err = os.Lstat(e.socket()); err == nil {
		err = e.register(ctx, kubelet)
	}
	if err != nil {
		e.end()
	}
	return err
}

func (e *endpoint) register(ctx context.Context, kubelet string) error {
	conn, err := grpc.NewClient("unix:"+kubelet,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: filepath.Base(e.socket()), ResourceName: e.name,
		Options: options()})
	if err != nil {
		return fmt.Errorf("the kubelet does not take %s: %w", e.name, err)
	}
	return nil
}

// end stops serving, and removes the socket.
func (e *endpoint) end() {
	if e.server == nil {
		return
	}
	e.server.Stop()
	<-e.served // nothing is left of it
	e.server = nil
}
