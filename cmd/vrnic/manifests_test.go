package main

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/k8s"
)

// A podSpec is what the manifests for Kubernetes have of pods.
type podSpec struct {
	Containers []struct {
		Name, Image   string
		PullPolicy    string `yaml:"imagePullPolicy"`
		Args, Command []string
		Env           []struct {
			Name, Value string
			ValueFrom   map[string]map[string]string `yaml:"valueFrom"`
		}
		VolumeMounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
		} `yaml:"volumeMounts"`
		Resources struct {
			Limits map[string]int
			Claims []map[string]string
		}
	}
	Volumes []struct {
		Name     string
		HostPath struct{ Path, Type string } `yaml:"hostPath"`
	}
	SecurityContext struct {
		RunAsUser *int `yaml:"runAsUser"`
	} `yaml:"securityContext"`
	Tolerations   []map[string]string
	Account       string              `yaml:"serviceAccountName"`
	Claims        []map[string]string `yaml:"resourceClaims"`
	RestartPolicy string              `yaml:"restartPolicy"`
}

type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   map[string]string
}

// readManifest decodes the documents of a file, one to each.
func readManifest(t *testing.T, name string, to ...any) {
	t.Helper()
	text, err := os.ReadFile("../../packaging/kubernetes/" + name)
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	for _, one := range to {
		_, loose := one.(*map[string]any)
		d.KnownFields(!loose)
		if err := d.Decode(one); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if err := d.Decode(new(any)); err != io.EOF {
		t.Errorf("%s has more documents than %d: %v", name, len(to), err)
	}
}

// A daemonSet runs a pod on each node.
type daemonSet struct {
	manifest `yaml:",inline"`
	Spec     struct {
		Selector map[string]map[string]string
		Template struct {
			Metadata map[string]map[string]string
			Spec     podSpec
		}
	}
}

// The manifests start commands that there are, with what other containers mount at the same paths
// as on the node, and ask for what is offered.
func TestManifests(t *testing.T) {
	var set, dra daemonSet
	readManifest(t, "vrnic.yaml", &set)
	checkSet(t, &set)
	var class, account, role, binding map[string]any
	readManifest(t, "dra.yaml", &class, &account, &role, &binding, &dra)
	checkSet(t, &dra)
	name := func(of map[string]any, keys ...string) any {
		for _, k := range keys {
			of, _ = of[k].(map[string]any)
		}
		return of["name"]
	}
	if who := dra.Spec.Template.Spec.Account; who == "" || name(account, "metadata") != who ||
		name(binding, "roleRef") != name(role, "metadata") {
		t.Errorf("%s is to be %v with %v", who, account, binding)
	}

	var pod struct {
		manifest `yaml:",inline"`
		Spec     podSpec
	}
	readManifest(t, "pod.yaml", &pod)
	if got := pod.Spec.Containers[0].Resources.Limits; len(got) != 1 || got[k8s.RNIC] != 1 {
		t.Errorf("the pod asks for %v", got)
	}
	var template map[string]any
	readManifest(t, "claim.yaml", &template, &pod)
	asked, err := yaml.Marshal(template["spec"])
	if err != nil {
		t.Fatal(err)
	}
	if class := name(class, "metadata").(string); !strings.Contains(string(asked),
		"deviceClassName: "+class) || !strings.HasSuffix(class, "."+k8s.Driver) ||
		pod.Spec.Claims[0]["resourceClaimTemplateName"] != name(template, "metadata") ||
		pod.Spec.Containers[0].Resources.Claims[0]["name"] != pod.Spec.Claims[0]["name"] {
		t.Errorf("the pod claims %+v, of %s", pod.Spec.Claims, asked)
	}
}

func checkSet(t *testing.T, set *daemonSet) {
	t.Helper()
	spec := set.Spec.Template.Spec
	if set.Kind != "DaemonSet" || len(spec.Containers) != 2 ||
		set.Spec.Selector["matchLabels"]["app"] != set.Spec.Template.Metadata["labels"]["app"] {
		t.Errorf("the manifest is %+v", set)
	}
	if user := spec.SecurityContext.RunAsUser; user == nil || *user != 0 {
		t.Error("they run as the image's user, who is nobody")
	}
	app := newApp(io.Discard, io.Discard)
	at := make(map[string]string)
	for _, v := range spec.Volumes {
		at[v.Name] = v.HostPath.Path
	}
	build, err := os.ReadFile("../../packaging/image/build")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range spec.Containers {
		// What no registry has is not asked for there, as it is if nothing is said of a latest one.
		if c.PullPolicy != "Never" || !strings.Contains(string(build), `"`+c.Image+`"`) {
			t.Errorf("%s is of the image %s, pulled %s", c.Name, c.Image, c.PullPolicy)
		}
		for _, m := range c.VolumeMounts {
			if at[m.Name] != m.MountPath || m.MountPath == "" {
				t.Errorf("%s has %s at %s, on the node it is %q", c.Name, m.Name, m.MountPath, at[m.Name])
			}
		}
		for _, e := range c.Env {
			node := e.Name == "NODE_NAME" && e.ValueFrom["fieldRef"]["fieldPath"] == "spec.nodeName"
			if !node && (e.Name != "VRNIC_SOCKET" || !strings.HasPrefix(e.Value, at["run"]+"/")) {
				t.Errorf("%s has in its environment %v", c.Name, e)
			}
		}
		cmd := app.Command(c.Args[0])
		if cmd == nil {
			t.Fatalf("%s runs vrnic %v", c.Name, c.Args)
		}
		for _, arg := range c.Args[1:] {
			name, value, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
			if !ok || !slices.ContainsFunc(cmd.Flags, func(f cli.Flag) bool {
				return slices.Contains(f.Names(), name)
			}) {
				t.Errorf("%s: vrnic %s has no %s", c.Name, cmd.Name, arg)
			}
			if _, err := daemon.ParseDevice(value); name == "device" && err != nil {
				t.Errorf("%s: %v", arg, err)
			}
		}
	}
}
