package containers

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/needtest"
)

// A descriptor points at a blob of an image (OCI image format, descriptor.md).
type descriptor struct {
	MediaType string
	Digest    string
	Size      int
	Platform  struct{ Architecture, OS string }
}

// ociImage has the files of an image's layout, by name.
type ociImage struct {
	t     *testing.T
	files map[string][]byte
}

func unpack(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := make(map[string][]byte)
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" {
			t.Errorf("%s is of %d:%d %s", h.Name, h.Uid, h.Gid, h.Uname)
		}
		files[strings.TrimPrefix(h.Name, "./")] = b
	}
}

// read decodes a file of JSON.
func (o *ociImage) read(name string, to any) {
	o.t.Helper()
	if err := json.Unmarshal(o.files[name], to); err != nil {
		o.t.Fatalf("%s: %v: %s", name, err, o.files[name])
	}
}

// blob is the name of what d points at, which has its size and digest.
func (o *ociImage) blob(d descriptor, mediaType string) string {
	o.t.Helper()
	name := "blobs/" + strings.Replace(d.Digest, ":", "/", 1)
	b, ok := o.files[name]
	if !ok || len(b) != d.Size || fmt.Sprintf("sha256:%x", sha256.Sum256(b)) != d.Digest ||
		d.MediaType != mediaType {
		o.t.Errorf("a blob of %d octets is described as %+v, want type %s", len(b), d, mediaType)
	}
	return name
}

// The image of `make image` holds to OCI's layout: each blob has the digest and the size by which
// it is pointed at, and the layer is what the configuration says. A second build gives the same
// octets. In a container of it a daemon runs, whom a program in another one reaches.
func TestOCIImage(t *testing.T) {
	if !thorough() {
		needtest.Skip(t, "it builds the programs anew: make containers")
	}
	s := newSite(t, 0, twoDevices...) // for its podman
	var archives [2][]byte
	var file string
	for i := range archives {
		out, err := exec.Command("../../packaging/image/build", t.TempDir()).Output()
		if err != nil {
			t.Fatalf("packaging/image/build: %v", err)
		}
		file = strings.TrimSpace(string(out))
		if archives[i], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two builds of one commit differ")
	}
	o := &ociImage{t, unpack(t, archives[0])}
	var layout struct{ ImageLayoutVersion string }
	if o.read("oci-layout", &layout); layout.ImageLayoutVersion != "1.0.0" {
		t.Errorf("oci-layout: %+v", layout)
	}
	var index struct {
		SchemaVersion int
		Manifests     []descriptor
	}
	o.read("index.json", &index)
	if index.SchemaVersion != 2 || len(index.Manifests) != 1 ||
		index.Manifests[0].Platform.Architecture != runtime.GOARCH {
		t.Fatalf("index.json: %+v", index)
	}
	var manifest struct {
		SchemaVersion int
		Config        descriptor
		Layers        []descriptor
	}
	const media = "application/vnd.oci.image."
	o.read(o.blob(index.Manifests[0], media+"manifest.v1+json"), &manifest)
	var config struct {
		Architecture, OS string
		RootFS           struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	o.read(o.blob(manifest.Config, media+"config.v1+json"), &config)
	if manifest.SchemaVersion != 2 || len(manifest.Layers) != 1 || len(config.RootFS.DiffIDs) != 1 ||
		config.OS != "linux" || config.Architecture != runtime.GOARCH {
		t.Fatalf("%+v, %+v", manifest, config)
	}
	packed := o.files[o.blob(manifest.Layers[0], media+"layer.v1.tar+gzip")]
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(z)
	if err != nil || fmt.Sprintf("sha256:%x", sha256.Sum256(layer)) != config.RootFS.DiffIDs[0] {
		t.Errorf("the layer is not what the configuration names: %v", err)
	}
	if unpack(t, layer)["usr/share/doc/vrnic/copyright"] == nil {
		t.Error("nothing in the image says under which terms its parts are")
	}

	s.podman("load", "--input", file)
	if len(o.files) != 2+3+3 { // folders: the root, blobs, sha256
		t.Errorf("the layout has %d entries", len(o.files))
	}
	sockets := filepath.Join(s.dir, "sockets")
	if err := os.Mkdir(sockets, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(sockets, 0o777); err != nil { // the daemon is nobody
		t.Fatal(err)
	}
	in := func(args ...string) []string {
		return s.words(append([]string{"run", "--network", "none", "--cgroups", "disabled", "--pull",
			"never", "--volume", sockets + ":/run/vrnic"}, args...)...)
	}
	if out := s.run(in("--rm", "localhost/vrnic", "version")...); !strings.Contains(out, " abi ") {
		t.Errorf("vrnic version: %s", out)
	}
	s.run(in("--detach", "--name", "daemon", "localhost/vrnic", "up", "--device",
		"left,addr=10.1.0.1/24", "--device", "right,addr=10.1.0.2/24")...)
	proctest.Eventually(t, patience, "the daemon is ready", func() bool {
		return strings.Contains(s.podman("logs", "daemon"), "ready ")
	})
	if out := s.run(in("--rm", "localhost/vrnic", "show", "dev")...); !strings.Contains(out, "left") ||
		!strings.Contains(out, "right") {
		t.Errorf("a program in another container sees\n%s\n%s", out, s.podman("logs", "daemon"))
	}
	s.podman("stop", "--time", "10", "daemon")
	if out := s.podman("inspect", "--format", "{{.State.ExitCode}}", "daemon"); out != "0\n" {
		t.Errorf("the daemon ended with status %s%s", out, s.podman("logs", "daemon"))
	}
}
