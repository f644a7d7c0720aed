// Package daemon watches a burstd: whether it serves, and which devices it has.
//
// The end of a daemon is an event and not found by asking: a program that has opened the daemon's device ends with it. So a plugin says within
// milliseconds that devices are unhealthy, and costs nothing meanwhile. State of ports, addresses and speed are asked for again every [Refresh].
package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Refresh is how often devices of a serving daemon are listed again.
	Refresh = 5 * time.Second
	// Retry is how long to wait before a daemon that does not serve is asked again.
	Retry = time.Second
)

// Device is a device of the daemon.
type Device struct {
	// Name is the name that verbs programs see, as burst0.
	Name string
	// Interface is the network interface of its port.
	Interface string
	// Up says whether the port is active.
	Up bool
	// SpeedMbps is the speed of the interface in Mbit/s; 0: unknown.
	SpeedMbps int64
	// PathMTU is the largest payload of a packet in bytes.
	PathMTU int64
	// Addresses are the IP addresses behind its GIDs.
	Addresses []string
}

// State is what is known of the daemon.
type State struct {
	// Serving says whether the daemon answers.
	Serving bool
	// Devices are those of the daemon, or the last known ones if it does not serve.
	Devices []Device
}

// Healthy says whether programs can use the device now.
func (s State) Healthy(name string) bool {
	for _, one := range s.Devices {
		if one.Name == name {
			return s.Serving && one.Up
		}
	}
	return false
}

// Source is how a daemon is asked.
type Source interface {
	// List returns the devices of a daemon that serves, else an error.
	List(ctx context.Context) ([]Device, error)
	// Wait returns when the daemon has ended, or could not be reached, or ctx has ended. It calls event when it will notice the daemon's end, and
	// each time when something of the device changes.
	Wait(ctx context.Context, device string, event func()) error
}

// Watcher keeps the state of one daemon. Make it with [NewWatcher].
type Watcher struct {
	source Source
	after  func(time.Duration) <-chan time.Time

	mutex   sync.Mutex
	state   State
	changed chan struct{}
}

// NewWatcher makes a watcher; after is time.After, or a test's clock.
func NewWatcher(source Source, after func(time.Duration) <-chan time.Time) *Watcher {
	return &Watcher{source: source, after: after, changed: make(chan struct{})}
}

// State returns what is known, and a channel that is closed when it changes.
func (w *Watcher) State() (State, <-chan struct{}) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.state, w.changed
}

func (w *Watcher) publish(state State) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if reflect.DeepEqual(state, w.state) {
		return
	}
	w.state = state
	close(w.changed)
	w.changed = make(chan struct{})
}

// ended keeps the devices and says that they cannot be used.
func (w *Watcher) ended() {
	state, _ := w.State()
	w.publish(State{Devices: state.Devices})
}

// Run watches until ctx ends. report gets one sentence for each change of heart: why the daemon cannot be used.
func (w *Watcher) Run(ctx context.Context, report func(string)) {
	last := ""
	for ctx.Err() == nil {
		why := w.once(ctx)
		if ctx.Err() != nil {
			return
		}
		w.ended()
		if said := why.Error(); said != last {
			report(said)
			last = said
		}
		select {
		case <-ctx.Done():
		case <-w.after(Retry):
		}
	}
}

// once serves one life of the daemon: it returns why that is over.
func (w *Watcher) once(ctx context.Context) error {
	devices, err := w.source.List(ctx)
	if err != nil {
		return err
	}
	if len(devices) == 0 {
		return errors.New("the daemon has no device")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, ended := make(chan struct{}, 1), make(chan error, 1)
	event := func() {
		select {
		case events <- struct{}{}:
		default:
		}
	}
	go func() { ended <- w.source.Wait(ctx, devices[0].Name, event) }()
	// Nothing is said before the end would be noticed.
	select {
	case err := <-ended:
		return err
	case <-events:
	}
	for {
		w.publish(State{Serving: true, Devices: devices})
		select {
		case err := <-ended:
			return err
		case <-events:
		case <-w.after(Refresh):
		}
		listed, err := w.source.List(ctx)
		if err != nil {
			return err
		}
		devices = listed
	}
}

// Burst is a daemon at a control socket, asked by the command burst.
type Burst struct {
	// Program is the path of burst.
	Program string
	// Socket is the path of the control socket.
	Socket string
	// Watch is a command that opens the device given as its last word, prints a line when it has and at each event of the device, and ends with the
	// daemon: ibv_asyncwatch -d of rdma-core.
	Watch []string
}

// listed is what `burst ls --json` prints.
type listed struct {
	Devices []struct {
		Name      string `json:"name"`
		Interface string `json:"interface"`
		State     string `json:"state"`
		SpeedMbps int64  `json:"speed_mbps"`
		PathMTU   int64  `json:"path_mtu"`
		GIDs      []struct {
			Address string `json:"address"`
		} `json:"gids"`
	} `json:"devices"`
}

// List implements [Source].
func (b Burst) List(ctx context.Context) ([]Device, error) {
	ctx, cancel := context.WithTimeout(ctx, Refresh)
	defer cancel()
	said, err := exec.CommandContext(ctx, b.Program, "ls", "--json", "--socket", b.Socket).Output()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return nil, fmt.Errorf("%s", bytes.TrimSpace(failed.Stderr))
	}
	if err != nil {
		return nil, err
	}
	return parse(said)
}

func parse(said []byte) ([]Device, error) {
	var found listed
	if err := json.Unmarshal(said, &found); err != nil {
		return nil, fmt.Errorf("burst ls --json: %w", err)
	}
	devices := make([]Device, 0, len(found.Devices))
	for _, one := range found.Devices {
		device := Device{Name: one.Name, Interface: one.Interface, Up: one.State == "up", SpeedMbps: one.SpeedMbps, PathMTU: one.PathMTU}
		for _, gid := range one.GIDs {
			device.Addresses = append(device.Addresses, gid.Address)
		}
		devices = append(devices, device)
	}
	return devices, nil
}

// Wait implements [Source].
func (b Burst) Wait(ctx context.Context, device string, event func()) error {
	terminal, end, err := openTerminal()
	if err != nil {
		return err
	}
	defer terminal.Close()
	words := append([]string{"run", "--no-start", "--no-host-files", "--socket", b.Socket, "--"}, b.Watch...)
	watch := exec.CommandContext(ctx, b.Program, append(words, device)...)
	watch.Env = append(os.Environ(), "BURST_QUIET=1")
	watch.Stdout = end
	stderr := &bytes.Buffer{}
	watch.Stderr = stderr
	// The program must not outlive this one, which may be killed.
	watch.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = watch.Start()
	end.Close()
	if err != nil {
		return err
	}
	for lines := bufio.NewScanner(terminal); lines.Scan(); {
		event()
	}
	err = watch.Wait()
	if text := bytes.TrimSpace(stderr.Bytes()); len(text) > 0 {
		return fmt.Errorf("%s", text)
	}
	if err == nil || errors.As(err, new(*exec.ExitError)) {
		return errors.New("the daemon has ended")
	}
	return err
}

// openTerminal makes a pseudo-terminal, because a C program keeps its lines back from a pipe. It returns the end that reads and the program's.
func openTerminal() (*os.File, *os.File, error) {
	reading, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	fail := func(err error) (*os.File, *os.File, error) {
		reading.Close()
		return nil, nil, fmt.Errorf("/dev/ptmx: %w", err)
	}
	number, err := unix.IoctlGetInt(int(reading.Fd()), unix.TIOCGPTN)
	if err != nil {
		return fail(err)
	}
	if err := unix.IoctlSetPointerInt(int(reading.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return fail(err)
	}
	writing, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return fail(err)
	}
	return reading, writing, nil
}
