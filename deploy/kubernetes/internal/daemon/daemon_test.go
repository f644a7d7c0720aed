package daemon

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// fake is a daemon that a test starts and ends.
type fake struct {
	lists chan []Device // empty: it does not serve
	ends  chan error
}

func (f *fake) List(ctx context.Context) ([]Device, error) {
	select {
	case devices := <-f.lists:
		if devices == nil {
			return nil, errors.New("no daemon answers")
		}
		return devices, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (f *fake) Wait(ctx context.Context, device string, event func()) error {
	event()
	select {
	case err := <-f.ends:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// next waits until the state changes.
func next(t *testing.T, watcher *Watcher, changed <-chan struct{}) (State, <-chan struct{}) {
	t.Helper()
	select {
	case <-changed:
	case <-time.After(time.Minute):
		t.Fatal("the state does not change")
	}
	return watcher.State()
}

func TestTheEndOfTheDaemonIsAnEventAndNotATime(t *testing.T) {
	source := &fake{lists: make(chan []Device, 1), ends: make(chan error)}
	clock := make(chan time.Time)
	waits := make(chan time.Duration, 100)
	watcher := NewWatcher(source, func(d time.Duration) <-chan time.Time { waits <- d; return clock })
	_, changed := watcher.State()
	ctx, cancel := context.WithCancel(context.Background())
	sentences := make(chan string, 10)
	done := make(chan struct{})
	go func() { watcher.Run(ctx, func(said string) { sentences <- said }); close(done) }()

	source.lists <- []Device{{Name: "burst0", Up: true}}
	state, changed := next(t, watcher, changed)
	if !state.Healthy("burst0") || state.Healthy("burst1") {
		t.Fatalf("%+v", state)
	}
	// The clock stands still: the end alone changes the state.
	source.ends <- errors.New("the daemon has ended")
	state, changed = next(t, watcher, changed)
	if state.Serving || len(state.Devices) != 1 || state.Healthy("burst0") {
		t.Fatalf("%+v", state)
	}
	if said := <-sentences; said != "the daemon has ended" {
		t.Fatal(said)
	}
	// A successor is found after one pause, and a port that is down is not healthy.
	clock <- time.Time{}
	source.lists <- []Device{{Name: "burst0"}}
	if state, _ = next(t, watcher, changed); !state.Serving || state.Healthy("burst0") {
		t.Fatalf("%+v", state)
	}
	cancel()
	<-done
}

func TestADaemonThatNeverServesIsReportedOnce(t *testing.T) {
	source := &fake{lists: make(chan []Device), ends: make(chan error)}
	clock := make(chan time.Time)
	watcher := NewWatcher(source, func(time.Duration) <-chan time.Time { return clock })
	ctx, cancel := context.WithCancel(context.Background())
	sentences := make(chan string, 10)
	done := make(chan struct{})
	go func() { watcher.Run(ctx, func(said string) { sentences <- said }); close(done) }()
	for range 3 {
		source.lists <- nil
		clock <- time.Time{}
	}
	source.lists <- []Device{}
	clock <- time.Time{}
	cancel()
	<-done
	close(sentences)
	var all []string
	for said := range sentences {
		all = append(all, said)
	}
	if len(all) != 2 || all[0] != "no daemon answers" || all[1] != "the daemon has no device" {
		t.Fatal(all)
	}
}

func TestWhatBurstLsPrintsIsRead(t *testing.T) {
	text := `{"devices":[{"name":"burst0","interface":"eth0","state":"up","speed_mbps":10000,"path_mtu":4096,"gids":[{"address":"10.0.0.1"}]}],"urma":[]}`
	devices, err := parse([]byte(text))
	if err != nil || len(devices) != 1 {
		t.Fatal(devices, err)
	}
	if one := devices[0]; one.Name != "burst0" || !one.Up || one.SpeedMbps != 10000 || one.PathMTU != 4096 || one.Addresses[0] != "10.0.0.1" {
		t.Fatalf("%+v", one)
	}
	if _, err := parse([]byte("nonsense")); err == nil {
		t.Fatal("nonsense is read")
	}
}

// A daemon of what was built (BURST_BUILD), which is killed.
func TestARealDaemonThatIsKilledIsNoticed(t *testing.T) {
	build := os.Getenv("BURST_BUILD")
	if build == "" {
		t.Skip("BURST_BUILD names no build of Burst: make kubernetes runs this test")
	}
	socket := filepath.Join(t.TempDir(), "b.sock")
	daemon := exec.Command(filepath.Join(build, "burstd"), "--port", "udp:dev=lo", "--socket", socket)
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	source := Burst{Program: filepath.Join(build, "burst"), Socket: socket, Watch: []string{"ibv_asyncwatch", "-d"}}
	watcher := NewWatcher(source, time.After)
	_, changed := watcher.State()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { watcher.Run(ctx, func(said string) { t.Log(said) }); close(done) }()
	state, changed := next(t, watcher, changed)
	if !state.Healthy("burst0") || state.Devices[0].Interface != "lo" {
		t.Fatalf("%+v", state)
	}
	began := time.Now()
	daemon.Process.Kill()
	daemon.Wait()
	if state, _ = next(t, watcher, changed); state.Healthy("burst0") {
		t.Fatalf("%+v", state)
	}
	t.Logf("noticed after %v", time.Since(began))
	cancel()
	<-done
}
