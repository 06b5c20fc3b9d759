package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// bin is the folder of the built programs.
var bin string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "reprise-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	args := append([]string{"build", "-o", dir + string(filepath.Separator)}, buildFlags...)
	build := exec.Command("go", append(args, "reprise/cmd/serve", "reprise/cmd/generate", "reprise/cmd/bench")...)
	if text, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, text)
		return 1
	}
	bin = dir
	return m.Run()
}

// lines collects what a program prints.
type lines struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.String()
}

// program is a running process.
type program struct {
	t              *testing.T
	command        *exec.Cmd
	stdout, stderr lines
	done           chan struct{} // closed when it has ended
}

// start runs a program that is killed when the test ends, if it still runs then.
func start(t *testing.T, name string, args ...string) *program {
	t.Helper()
	p := &program{t: t, command: exec.Command(filepath.Join(bin, name), args...), done: make(chan struct{})}
	p.command.Stdout, p.command.Stderr = &p.stdout, &p.stderr
	p.command.Env = append(os.Environ(), raceOptions)
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.command.Wait() // code reports how it ended
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.command.Process.Kill()
		<-p.done
		if strings.Contains(p.stderr.String(), "DATA RACE") {
			t.Errorf("%s: %s", name, p.stderr.String())
		}
	})
	return p
}

// end waits for the process and returns its exit code, -1 after a signal.
func (p *program) end(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(limit):
		p.t.Fatalf("still running after %s; it says:\n%s%s", limit, p.stdout.String(), p.stderr.String())
	}
	return p.command.ProcessState.ExitCode()
}

// peakBytes is the most memory that an ended process had.
func (p *program) peakBytes() int64 {
	return p.command.ProcessState.SysUsage().(*syscall.Rusage).Maxrss * 1024
}

// residentBytes is the memory that a running process has, 0 where the system does not say.
func (p *program) residentBytes() int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.command.Process.Pid))
	if err != nil {
		return 0
	}
	var total, resident int64
	if _, err := fmt.Sscan(string(text), &total, &resident); err != nil {
		return 0
	}
	return resident * int64(os.Getpagesize())
}

// server is a running serve.
type server struct {
	*program
	url    string
	client *http.Client
}

var servingAt = regexp.MustCompile(`Serving .* on (http://\S+) `)

// serve starts a server on a free port and waits until it is ready.
func serve(t *testing.T, args ...string) *server {
	t.Helper()
	s := &server{program: start(t, "serve", append([]string{"--port", "0"}, args...)...)}
	for end := time.Now().Add(2 * time.Minute); s.url == ""; time.Sleep(10 * time.Millisecond) {
		if m := servingAt.FindStringSubmatch(s.stdout.String()); m != nil {
			s.url = m[1]
		}
		select {
		case <-s.done:
			t.Fatalf("the server ended: %s", s.stderr.String())
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("not ready: %s", s.stderr.String())
		}
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	s.client = &http.Client{Transport: transport, Timeout: 5 * time.Minute}
	t.Cleanup(transport.CloseIdleConnections)
	if status, body := s.get("/health"); status != http.StatusOK {
		t.Fatalf("health: %d %s", status, body)
	}
	return s
}

func (s *server) get(path string) (int, string) {
	s.t.Helper()
	r, err := s.client.Get(s.url + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

// answer is a response that was read to its end.
type answer struct {
	status int
	header http.Header
	body   string
}

// post sends a JSON body; it may be called from any goroutine.
func (s *server) post(ctx context.Context, path, body string) (answer, error) {
	r, err := s.open(ctx, path, body)
	if err != nil {
		return answer{}, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return answer{r.StatusCode, r.Header, string(text)}, err
}

// open sends a JSON body and leaves the answer to be read.
func (s *server) open(ctx context.Context, path, body string) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Content-Type", "application/json")
	return s.client.Do(q)
}

// must posts and returns the body of a 200.
func (s *server) must(path, body string) string {
	s.t.Helper()
	a, err := s.post(context.Background(), path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	if a.status != http.StatusOK {
		s.t.Fatalf("%.200s: %d %s", body, a.status, a.body)
	}
	return a.body
}

// terminate sends SIGTERM and waits for a clean end within limit.
func (s *server) terminate(limit time.Duration) {
	s.t.Helper()
	if err := s.command.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	if code := s.end(limit); code != 0 {
		s.t.Errorf("exit code %d after SIGTERM: %s", code, s.stderr.String())
	}
}
