package verbs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/needtest"
)

// startRSockets starts a program whose sockets of TCP are sockets over RDMA.
func (p *place) startRSockets(argv ...string) *process {
	p.T.Helper()
	return p.startRSocketsWith(nil, argv...)
}

func (p *place) startRSocketsWith(env []string, argv ...string) *process {
	p.T.Helper()
	exec := []string{program, "exec", "--rsockets", "--"}
	if p.dev != "" {
		exec = []string{program, "exec", "-d", p.dev, "--rsockets", "--"}
	}
	return p.begin(slices.Concat(p.env(), env, []string{"HOME=" + workDir}), append(exec, argv...)...)
}

// wantNoRSocketD wants all processes that have sockets at the daemon for programs to end.
func (d *daemon) wantNoRSocketD() {
	d.T.Helper()
	proctest.Eventually(d.T, patience, "no rsocketd", func() bool {
		names, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil {
			d.T.Fatal(err)
		}
		return !slices.ContainsFunc(names, func(name string) bool {
			comm, err := os.ReadFile(filepath.Dir(name) + "/comm")
			if err != nil || !strings.HasPrefix(string(comm), "libvrnic-rsocke") {
				return false // or it has just gone
			}
			env, err := os.ReadFile(name)
			return err == nil && bytes.Contains(env, []byte("VRNIC_SOCKET="+d.socket+"\x00"))
		})
	})
}

// What sockets do for a program that knows nothing of RDMA, and how they end.
func TestPlainSockets(t *testing.T) {
	need(t)
	for _, make := range []maker{iwarpTopologies[1], roceTopologies[1]} {
		t.Run(make.name, func(t *testing.T) {
			top := make.make(t)
			top.server.dev = ""
			for _, c := range []string{"names", "gone", "families", "errors",
				"refused", "interrupted", "crowd", "waiting", "ends", "shut",
				"brief", "much", "inherited", "anywhere", "stranger", "killed"} {
				t.Run(c, func(t *testing.T) {
					top.server.in(t).startRSocketsWith(top.cEnv(), cProgram(t, "plain"), c).succeed(cLimit,
						"^ok "+c+"$", "^all done$")
				})
			}
			top.server.settle()
			top.server.wantNoRSocketD()
		})
	}
}

// A worker that has dropped its rights gets none by the process that has the sockets.
func TestPlainSocketsOfRoot(t *testing.T) {
	need(t)
	needtest.Root(t)
	top := oneDevice(t)
	for _, c := range []string{"rights", "users"} {
		top.server.startRSocketsWith(top.cEnv(), cProgram(t, "plain"), c).succeed(cLimit,
			"^ok "+c+"$", "^all done$")
	}
	top.server.settle()
	top.server.wantNoRSocketD()
}

// The daemon dies: connections end with an error, what listens does so at the next one, and nothing
// is left behind the programs.
func TestPlainSocketsDaemonKilled(t *testing.T) {
	need(t, "redis-server", "redis-cli")
	for _, device := range []string{deviceA, roceA} {
		t.Run(device, func(t *testing.T) {
			d := upOrdinary(t, "--device", device)
			p := &place{d, "", addrsA}
			top := &topology{"one device", p, p}
			port := fmt.Sprint(nextPort.Add(1))
			server := top.redis(addrsA[0], port, ownDir(t, ordinary()))
			cli := []string{"redis-cli", "-h", addrsA[0], "-p", port}
			waits := p.startRSockets(append(cli, "subscribe", "channel")...)
			waits.WaitOutput("subscribe", 1)
			d.Kill()
			waits.fail(patience)
			p.startRSockets(append(cli, "ping")...).fail(patience, "no daemon runs")

			next := startWith(t, nil, ordinary(), nil, nil, daemonProgram, "up", "-v",
				"--socket", d.socket, "--device", device)
			next.WaitOutput("ready", 1)
			proctest.Eventually(t, patience, "the server listens again", func() bool {
				ping := p.startRSockets(append(cli, "ping")...)
				return ping.Wait(patience) == nil && strings.Contains(ping.Output(), "PONG")
			})
			server.Kill()
			d.wantNoRSocketD()
		})
	}
}

// carried is how many octets of others have come to the place's devices, by RDMA.
func (p *place) carried() (n float64) {
	p.T.Helper()
	for _, row := range p.stat() {
		if dev, _ := row["dev"].(string); row["qpn"] == nil && (p.dev == "" || dev == p.dev) {
			octets, _ := row["received_octets"].(float64)
			n += octets
		}
	}
	return n
}

// wants waits until the place's devices have got n octets more than before.
func (p *place) wants(before, n float64) {
	p.T.Helper()
	proctest.Eventually(p.T, patience, fmt.Sprintf("%.0f octets come by RDMA", n),
		func() bool { return p.carried()-before >= n })
}

// A plainProgram is one that knows nothing of RDMA: it is run with a server at an address and port,
// and a folder of the same user's.
type plainProgram struct {
	words string // the client's command line, as it is shown
	needs []string
	run   func(t *testing.T, top *topology, addr, port, dir string)
}

const (
	iperfWords     = "iperf3 -c ADDR -p PORT -n 20M"
	iperfBackWords = "iperf3 -c ADDR -p PORT -n 5M -R -P 2"
	curlWords      = "curl -o FILE http://ADDR/FILE"
	proxyWords     = "curl -o FILE http://ADDR/proxy/FILE"
	redisWords     = "redis-cli -h ADDR -p PORT"
	redisMarkWords = "redis-benchmark -h ADDR -p PORT -n 1000 -c 10 -t set,get"
	sftpWords      = "sftp -b FILE ADDR"
)

var plainPrograms = []plainProgram{
	{iperfWords, []string{"iperf3"}, func(t *testing.T, top *topology, addr, port, _ string) {
		runIperf(t, top, iperfWords, addr, port)
	}},
	{iperfBackWords, []string{"iperf3"}, func(t *testing.T, top *topology, addr, port, _ string) {
		runIperf(t, top, iperfBackWords, addr, port)
	}},
	{curlWords, []string{"curl", nginxPath}, runCurl},
	{proxyWords, []string{"curl", nginxPath}, runProxy},
	{redisWords, []string{"redis-cli", "redis-server"}, runRedis},
	{redisMarkWords, []string{"redis-benchmark", "redis-server"}, runRedisMark},
	{sftpWords, []string{"sftp", "ssh", sshdPath}, runSFTP},
}

const (
	nginxPath = "/usr/sbin/nginx"
	sshdPath  = "/usr/sbin/sshd"
)

// plainRuns are the programs as runs on a kind of device; quick are command lines.
func plainRuns(quick ...string) (runs []roceRun) {
	for i := range plainPrograms {
		p := &plainPrograms[i]
		do := func(t *testing.T, top *topology) {
			need(t, p.needs...)
			families := top.server.addrs[:1]
			if thorough() {
				families = top.server.addrs[:]
			}
			for _, addr := range families {
				p.run(t, top, addr, fmt.Sprint(nextPort.Add(1)), ownDir(t, ordinary()))
			}
		}
		runs = append(runs, roceRun{words: p.words, quick: slices.Contains(quick, p.words), do: do})
	}
	return runs
}

// TestPlainPrograms runs programs that know nothing of RDMA over it, as an ordinary user: iperf3,
// nginx and curl, redis, ssh.
func TestPlainPrograms(t *testing.T) {
	t.Run("iWARP", func(t *testing.T) {
		runOn(t, onIWARP, iwarpTopologies, plainRuns(iperfWords, curlWords), "two daemons")
	})
	t.Run("RoCE", func(t *testing.T) {
		runRoCE(t, plainRuns(redisWords), "two devices")
	})
}

// listensAt waits until a program listens at a port of the server's devices.
func (top *topology) listensAt(p *process, port string) {
	p.T.Helper()
	var n int
	if _, err := fmt.Sscan(port, &n); err != nil {
		p.T.Fatal(err)
	}
	top.server.listens(p, n, 1)
}

func runIperf(t *testing.T, top *topology, client, addr, port string) {
	t.Helper()
	before := top.server.carried() + top.client.carried()
	server := top.server.startRSockets("iperf3", "-s", "-1", "-B", addr, "-p", port)
	top.listensAt(server, port)
	top.client.startRSockets(words(client, "ADDR", addr, "PORT", port)...).succeed(patience,
		`sender$`, `receiver$`, `^iperf Done\.$`)
	server.succeed(patience, "connected to "+regexp.QuoteMeta(top.clientAddr(addr)))
	got := top.server.carried() + top.client.carried() - before
	if want := 5e6; got < want {
		t.Errorf("%.0f octets went over RDMA, want %.0f and more", got, want)
	}
}

// clientAddr is the client's of the same family.
func (top *topology) clientAddr(addr string) string {
	return top.client.addrs[slices.Index(top.server.addrs[:], addr)]
}

// inURL is an address as it stands in front of a port.
func inURL(addr string) string {
	if strings.Contains(addr, ":") {
		return "[" + addr + "]"
	}
	return addr
}

// content is n octets that are nowhere else.
func content(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b) // never fails
	return b
}

// put writes a file for programs of the ordinary user.
func put(t *testing.T, name string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(name, max(ordinary(), os.Getuid()), -1); err != nil {
		t.Fatal(err)
	}
}

func wantFile(t *testing.T, name string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d octets have come, not the %d that were sent", len(got), len(want))
	}
}

// nginx starts one with two workers that has files of dir/www, and the same through itself.
func (top *topology) nginx(addr, port, dir string) *process {
	t := top.server.T
	t.Helper()
	conf := fmt.Sprintf(`worker_processes 2; daemon off; pid %[1]s/pid; error_log stderr info;
		events { worker_connections 64; }
		http { access_log off; sendfile on; tcp_nopush on; client_body_temp_path %[1]s/t1;
		proxy_temp_path %[1]s/t2; fastcgi_temp_path %[1]s/t3; uwsgi_temp_path %[1]s/t4;
		scgi_temp_path %[1]s/t5; server { listen %[2]s:%[3]s; root %[1]s/www;
		location /proxy/ { proxy_pass http://%[2]s:%[3]s/; } } }`, dir, inURL(addr), port)
	put(t, filepath.Join(dir, "conf"), []byte(conf))
	server := top.server.startRSockets(nginxPath, "-e", "stderr", "-p", dir, "-c", dir+"/conf")
	top.listensAt(server, port)
	return server
}

func runCurl(t *testing.T, top *topology, addr, port, dir string) {
	t.Helper()
	top.fetch(t, addr, port, dir, "")
}

// The proxy has its socket in epoll before it connects it.
func runProxy(t *testing.T, top *topology, addr, port, dir string) {
	t.Helper()
	top.fetch(t, addr, port, dir, "proxy/")
}

func (top *topology) fetch(t *testing.T, addr, port, dir, by string) {
	t.Helper()
	want := content(3_000_000)
	if err := os.Mkdir(dir+"/www", 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, dir+"/www/file", want)
	for _, name := range []string{dir, dir + "/www"} {
		if err := os.Chown(name, max(ordinary(), os.Getuid()), -1); err != nil {
			t.Fatal(err)
		}
	}
	server := top.nginx(addr, port, dir)
	before := top.client.carried()
	got := filepath.Join(dir, "got")
	url := "http://" + inURL(addr) + ":" + port + "/"
	top.client.startRSockets("curl", "-sS", "--fail", "-o", got, url+by+"file", "-o", got+"2",
		url+by+"file").succeed(patience)
	wantFile(t, got, want)
	wantFile(t, got+"2", want)
	top.client.wants(before, 6e6)
	// Nobody is there: the kernel's error.
	top.client.startRSockets("curl", "-sS", "http://"+inURL(addr)+":9/").fail(patience,
		"[Cc]ouldn't connect|[Ff]ailed to connect|refused")
	server.Kill()
}

func (top *topology) redis(addr, port, dir string) *process {
	top.server.T.Helper()
	server := top.server.startRSockets("redis-server", "--bind", addr, "--port", port, "--save", "",
		"--protected-mode", "no", "--dir", dir)
	server.WaitOutput("Ready to accept connections", 1)
	return server
}

func runRedis(t *testing.T, top *topology, addr, port, dir string) {
	t.Helper()
	server := top.redis(addr, port, dir)
	before := top.server.carried()
	long := strings.Repeat("over RDMA ", 10_000)
	cli := func(argv ...string) *process {
		p := top.client.startRSockets(append([]string{"redis-cli", "-h", addr, "-p", port}, argv...)...)
		p.succeed(patience)
		return p
	}
	cli("set", "key", long).wantOutput("^OK$")
	cli("get", "key").wantOutput("^" + long + "$")
	cli("client", "list").wantOutput("addr="+regexp.QuoteMeta(inURL(top.clientAddr(addr))),
		"laddr="+regexp.QuoteMeta(inURL(addr))+":"+port)
	top.server.wants(before, float64(len(long)))
	cli("shutdown", "nosave")
	server.succeed(patience, "bye bye")
}

func runRedisMark(t *testing.T, top *topology, addr, port, dir string) {
	t.Helper()
	server := top.redis(addr, port, dir)
	top.client.startRSockets("redis-benchmark", "-h", addr, "-p", port, "-n", "1000", "-c", "10", "-t",
		"set,get", "--csv").succeed(2*time.Minute, `^"SET","[1-9]`, `^"GET","[1-9]`)
	server.Kill()
}

// userName is the ordinary user's.
func userName(t *testing.T) string {
	t.Helper()
	u, err := user.LookupId(fmt.Sprint(max(ordinary(), os.Getuid())))
	if err != nil {
		t.Fatal(err)
	}
	return u.Username
}

// sshd needs an account with a password or PAM, and no shell for files.
func runSFTP(t *testing.T, top *topology, addr, port, dir string) {
	t.Helper()
	for _, name := range []string{"host", "user"} {
		start(t, nil, ordinary(), nil, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
			filepath.Join(dir, name)).succeed(patience)
	}
	want := content(2_000_000)
	put(t, dir+"/from", want)
	put(t, dir+"/batch", []byte("put "+dir+"/from "+dir+"/there\nget "+dir+"/there "+dir+"/back\n"))
	server := top.server.startRSockets(sshdPath, "-D", "-e", "-f", "/dev/null", "-p", port,
		"-o", "ListenAddress="+addr, "-o", "HostKey="+dir+"/host", "-o", "PidFile=none",
		"-o", "UsePAM=yes", "-o", "StrictModes=no", "-o", "AuthorizedKeysFile="+dir+"/user.pub",
		"-o", "ForceCommand=internal-sftp", "-o", "Subsystem=sftp internal-sftp")
	top.listensAt(server, port)
	before := top.server.carried()
	top.client.startRSockets("sftp", "-F", "/dev/null", "-b", dir+"/batch", "-o",
		"StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-i", dir+"/user", "-P", port,
		userName(t)+"@"+inURL(addr)).succeed(time.Minute)
	wantFile(t, dir+"/back", want)
	top.server.wants(before, 2e6)
	server.Kill()
}
