package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/shm"
)

// What `rdma link` and `rdma resource` of iproute2 print, which ask the kernel: the same columns,
// and with --json the keys of `rdma -j`.

// An rdmaRow is a line: a device, or its port, and then names and values in turn.
type rdmaRow struct {
	index  int // of the device
	dev    string
	port   bool
	fields []rdmaField // those without a value are left out
}

type rdmaField struct {
	name  string
	value any
}

// line is r as text; a sum of resources begins in another way.
func (r *rdmaRow) line(sum bool) string {
	var b strings.Builder
	switch {
	case sum:
		fmt.Fprintf(&b, "%d: %s:", r.index, plain(r.dev))
	case r.port:
		fmt.Fprintf(&b, "link %s/1", plain(r.dev))
	default:
		fmt.Fprintf(&b, "dev %s", plain(r.dev))
	}
	for _, f := range r.fields {
		if f.value != nil {
			fmt.Fprintf(&b, " %s %s", f.name, plain(fmt.Sprint(f.value)))
		}
	}
	return b.String()
}

// MarshalJSON implements json.Marshaler: the members are in the order of the columns.
func (r *rdmaRow) MarshalJSON() ([]byte, error) {
	fields := []rdmaField{{"ifindex", r.index}, {"ifname", r.dev}}
	if r.port {
		fields = append(fields, rdmaField{"port", 1})
	}
	b := []byte{'{'}
	for _, f := range append(fields, r.fields...) {
		if f.value == nil {
			continue
		}
		value, err := json.Marshal(f.value)
		if err != nil {
			return nil, err
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, "%q:%s", f.name, value)
	}
	return append(b, '}'), nil
}

// An rdmaKind is a kind of resources: which of the daemon's rows they are, and what their columns
// are called there.
type rdmaKind struct {
	name, rows, usage string
	port              bool
	columns           [][2]string
}

var rdmaKinds = []rdmaKind{
	{"pd", "pd", "protection domains", false,
		[][2]string{{"pdn", "pdn"}, {"users", "users"}, {"ctxn", "context"}, {"pid", "pid"},
			{"comm", "comm"}}},
	{"cq", "cq", "completion queues", false,
		[][2]string{{"cqn", "cqn"}, {"cqe", "depth"}, {"users", "queues"}, {"ctxn", "context"},
			{"pid", "pid"}, {"comm", "comm"}}},
	{"qp", "qp", "queue pairs", true,
		[][2]string{{"lqpn", "qpn"}, {"pdn", "pdn"}, {"rqpn", "dest_qpn"}, {"type", "type"},
			{"state", "state"}, {"rq-psn", "rq_psn"}, {"sq-psn", "sq_psn"}, {"pid", "pid"},
			{"comm", "comm"}}},
	{"cm_id", "cm", "ids of the connection manager", true,
		[][2]string{{"lqpn", "qpn"}, {"state", "state"}, {"ps", "space"}, {"pid", "pid"},
			{"comm", "comm"}, {"cm-idn", "id"}, {"src-addr", "local"}, {"dst-addr", "remote"}}},
	{"mr", "mr", "memory regions", false,
		[][2]string{{"mrn", "mrn"}, {"rkey", "rkey"}, {"lkey", "lkey"}, {"iova", "iova"},
			{"mrlen", "length"}, {"pdn", "pdn"}, {"pid", "pid"}, {"comm", "comm"}}},
	{"ctx", "ctx", "contexts: devices that programs have opened", false,
		[][2]string{{"ctxn", "context"}, {"pid", "pid"}, {"comm", "comm"}}},
	{"srq", "srq", "shared receive queues", false,
		[][2]string{{"srqn", "srqn"}, {"pdn", "pdn"}, {"pid", "pid"}, {"comm", "comm"}}},
}

// cmStates are Linux's names of the states of an id that it knows less of, or by another name.
var cmStates = map[string]string{"BOUND": "ADDR_BOUND", "REQUEST": "CONNECT",
	"CONNECTING": "CONNECT", "CONNECTED": "CONNECT", "DISCONNECTED": "DISCONNECT",
	"CLOSED": "DESTROYING"}

// ibStates are InfiniBand's names of the states that a QP of iWARP has by others, as Linux's siw
// has them.
var ibStates = map[string]string{"IDLE": "INIT", "CLOSING": "SQD", "TERMINATE": "SQE",
	"ERROR": "ERR"}

// of gives the rows of a kind, with the daemon's own beside them.
func (k *rdmaKind) of(c *cli.Context, client *shm.Client) iter.Seq2[*rdmaRow, error] {
	index := make(map[string]int)
	for i, name := range client.Devices() {
		index[name] = i
	}
	return func(yield func(*rdmaRow, error) bool) {
		for raw, err := range client.Rows(c.Context, k.rows) {
			var row map[string]any
			if err == nil {
				err = decodeNumbers(raw, &row)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if k.name == "mr" && row["kind"] == "window" {
				continue
			}
			dev, _ := row["dev"].(string)
			r := &rdmaRow{index: index[dev], dev: dev, port: k.port}
			for _, column := range k.columns {
				value := row[column[1]]
				switch {
				case column[0] == "type" && value == nil:
					value = "RC" // iWARP has no other
				case column[0] == "state":
					names := ibStates
					if k.name == "cm_id" {
						names = cmStates
					}
					if other, ok := names[fmt.Sprint(value)]; ok {
						value = other
					}
				case column[0] == "users" && k.name == "pd":
					value = users(row)
				}
				r.fields = append(r.fields, rdmaField{column[0], value})
			}
			if !yield(r, nil) {
				return
			}
		}
	}
}

// users counts what keeps a protection domain from being freed.
func users(row map[string]any) (n int64) {
	for _, kind := range []string{"mrs", "mws", "qps", "srqs", "ahs"} {
		number, _ := row[kind].(json.Number)
		more, _ := number.Int64() // 0 for what is no number
		n += more
	}
	return n
}

func decodeNumbers(raw json.RawMessage, row *map[string]any) error {
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	return dec.Decode(row)
}

// links are the devices with their ports.
func links(c *cli.Context, client *shm.Client) iter.Seq2[*rdmaRow, error] {
	return func(yield func(*rdmaRow, error) bool) {
		i := 0
		for raw, err := range client.Rows(c.Context, "dev") {
			var row struct {
				Dev   string
				State string
				Phys  string `json:"physical_state"`
			}
			if err == nil {
				err = json.Unmarshal(raw, &row)
			}
			r := &rdmaRow{i, row.Dev, true, []rdmaField{{"state", row.State},
				{"physical_state", row.Phys}, {"netdev", row.Dev}}}
			if !yield(r, err) || err != nil {
				return
			}
			i++
		}
	}
}

// sums count the resources of each device that this user may see.
func sums(c *cli.Context, client *shm.Client) iter.Seq2[*rdmaRow, error] {
	return func(yield func(*rdmaRow, error) bool) {
		counts := make(map[string]map[string]int)
		for _, dev := range client.Devices() {
			counts[dev] = make(map[string]int)
		}
		for i := range rdmaKinds {
			for r, err := range rdmaKinds[i].of(c, client) {
				if err != nil {
					yield(nil, err)
					return
				}
				if of := counts[r.dev]; of != nil {
					of[rdmaKinds[i].name]++
				}
			}
		}
		for i, dev := range client.Devices() {
			r := &rdmaRow{index: i, dev: dev}
			for _, k := range rdmaKinds {
				r.fields = append(r.fields, rdmaField{k.name, counts[dev][k.name]})
			}
			if !yield(r, nil) {
				return
			}
		}
	}
}

// rdmaRowsOf are the rows of a device, or all for "".
func rdmaRowsOf(rows iter.Seq2[*rdmaRow, error], device string) iter.Seq2[*rdmaRow, error] {
	return func(yield func(*rdmaRow, error) bool) {
		for r, err := range rows {
			if (err != nil || device == "" || r.dev == device) && !yield(r, err) {
				return
			}
		}
	}
}

// printRDMA prints rows as the flags say.
func printRDMA(c *cli.Context, sum bool, rows iter.Seq2[*rdmaRow, error]) error {
	if given(c, "json").Bool("json") {
		return writeJSON(c.App.Writer, func(yield func(json.RawMessage, error) bool) {
			for r, err := range rows {
				var raw json.RawMessage
				if err == nil {
					raw, err = r.MarshalJSON()
				}
				if !yield(raw, err) || err != nil {
					return
				}
			}
		})
	}
	out := bufio.NewWriter(c.App.Writer)
	for r, err := range rows {
		if err != nil {
			_ = out.Flush()
			return err
		}
		fmt.Fprintln(out, r.line(sum))
	}
	return out.Flush()
}

// rdmaCommands are `vrnic show link` and `vrnic show resource`.
func rdmaCommands() []*cli.Command {
	command := func(name, usage string, sum bool,
		rows func(*cli.Context, *shm.Client) iter.Seq2[*rdmaRow, error]) *cli.Command {
		return &cli.Command{Name: name, Usage: usage, Flags: []cli.Flag{socketFlag(), jsonFlag(),
			onlyDeviceFlag()},
			Action: asking(func(c *cli.Context, client *shm.Client) error {
				device, names := given(c, "device").String("device"), client.Devices()
				if device != "" && !slices.Contains(names, device) {
					return noDevice(device, names)
				}
				if err := printRDMA(c, sum, rdmaRowsOf(rows(c, client), device)); err != nil {
					return fmt.Errorf("show %s: %w", name, err)
				}
				return nil
			})}
	}
	resource := command("resource", "what there is of each device, as `rdma resource` has it", true,
		sums)
	for i := range rdmaKinds {
		resource.Subcommands = append(resource.Subcommands,
			command(rdmaKinds[i].name, rdmaKinds[i].usage, false, rdmaKinds[i].of))
	}
	return []*cli.Command{
		command("link", "devices with the state of their ports, as `rdma link` has it", false, links),
		resource,
	}
}
