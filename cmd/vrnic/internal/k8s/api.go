package k8s

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// An API is the API server as a pod reaches it.
type API struct {
	url    string
	token  string // the file that has it: it changes while the pod runs
	client *http.Client
}

// AccountDir is where a pod finds what it proves itself with.
const AccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// NewAPI is the API server that a pod's environment names, to which it goes with the files of dir.
func NewAPI(getenv func(string) string, dir string) (*API, error) {
	host, port := getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("this is no pod of Kubernetes: KUBERNETES_SERVICE_HOST and _PORT are " +
			"not in the environment")
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s/ca.crt has no certificate", dir)
	}
	return &API{url: "https://" + net.JoinHostPort(host, port), token: filepath.Join(dir, "token"),
		client: &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}}, nil
}

// maxReply bounds what is read of an answer: the API server stores no larger object.
const maxReply = 4 << 20

// errNotFound says that the API server has no such object.
var errNotFound = errors.New("the API server has no such object")

// apiPath is the path of an object, whatever its names have in them.
func apiPath(parts ...string) string {
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return "/" + strings.Join(parts, "/")
}

// do makes a call, whose answer is decoded into reply if that is not nil.
func (a *API) do(ctx context.Context, method, path, kind string, body, reply any) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, a.url+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	token, err := os.ReadFile(a.token)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", kind)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return err
	}
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s %s: %w", method, path, errNotFound)
	case resp.StatusCode/100 != 2:
		var status struct{ Message string }
		if json.Unmarshal(got, &status) != nil || status.Message == "" {
			status.Message = resp.Status
		}
		return fmt.Errorf("the API server, of %s %s: %.300s", method, path, status.Message)
	case reply == nil:
		return nil
	}
	return json.Unmarshal(got, reply)
}

func (a *API) get(ctx context.Context, path string, reply any) error {
	return a.do(ctx, http.MethodGet, path, "", nil, reply)
}

// apply makes an object, or has it as it is said here.
func (a *API) apply(ctx context.Context, path string, object any) error {
	return a.do(ctx, http.MethodPatch, path+"?fieldManager=vrnic&force=true",
		"application/apply-patch+yaml", object, nil)
}

func (a *API) remove(ctx context.Context, path string) error {
	if err := a.do(ctx, http.MethodDelete, path, "", nil, nil); !errors.Is(err, errNotFound) {
		return err
	}
	return nil
}
