package cdi

import (
	"fmt"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// blanks part words for a shell.
const blanks = " \t\n"

// Options are the words by which a runtime that does not read specifications, as docker before
// version 25, gives a container the same as the device of that name in the specification file:
// `docker run`'s -v and -e.
func Options(file, name string) (words []string, err error) {
	spec, err := cdi.ReadSpec(file, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: vrnic cdi generate writes it", err)
	}
	d := spec.GetDevice(name)
	if d == nil {
		var there []string
		for _, d := range spec.Devices {
			there = append(there, d.Name)
		}
		return nil, fmt.Errorf("%s has no device %s, but %s: vrnic cdi generate looks again", file, name,
			strings.Join(there, ", "))
	}
	for _, m := range d.ContainerEdits.Mounts {
		if strings.ContainsAny(m.HostPath, ":"+blanks) {
			return nil, fmt.Errorf("%q cannot be an option of docker's: it has a space or a colon",
				m.HostPath)
		}
		word := m.HostPath + ":" + m.ContainerPath
		if slices.Contains(m.Options, "ro") {
			word += ":ro"
		}
		words = append(words, "-v", word)
	}
	for _, e := range d.ContainerEdits.Env {
		if strings.ContainsAny(e, blanks) {
			return nil, fmt.Errorf("%q cannot be an option in one word: it has a space", e)
		}
		words = append(words, "-e", e)
	}
	return words, nil
}
