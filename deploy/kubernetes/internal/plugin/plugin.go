// Package plugin is a device plugin of the kubelet (deviceplugin/v1beta1), for clusters without dynamic resource allocation.
//
// A device of Burst is shared: it is offered as a number of equal parts, which pods take by `resources.limits`. A kubelet that starts removes all sockets of
// its directory; the plugin sees that of the kubelet appear (inotify), listens again and registers again.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"burst.dev/kubernetes/internal/cdi"
	"burst.dev/kubernetes/internal/daemon"
	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	kubeletSocket = "kubelet.sock"
	ownSocket     = "burst-rdma.sock"
	// retryEvery is the pause before a kubelet is called again that did not answer: its socket may be there before it listens.
	retryEvery = time.Second
	// SharesMax is how many pods of a node may have the resource: a list of the kubelet has an entry for each.
	SharesMax = 1000
)

// Options say what is offered.
type Options struct {
	// Directory is the kubelet's directory of device plugins.
	Directory string
	// Resource is the name that pods ask for, as burst.dev/rdma.
	Resource string
	// Shares is how many pods may share a device: 1 to [SharesMax].
	Shares int
	// Node is what containers get.
	Node cdi.Node
	// CDI says whether the runtime gets names of devices, else their mounts, nodes and variables (runtimes before containerd 1.7).
	CDI bool
}

// Plugin serves the kubelet. Make it with [New].
type Plugin struct {
	api.UnimplementedDevicePluginServer
	options Options
	watcher *daemon.Watcher
}

// New makes a plugin. An option that cannot be is an error.
func New(options Options, watcher *daemon.Watcher) (*Plugin, error) {
	if options.Shares < 1 || options.Shares > SharesMax {
		return nil, fmt.Errorf("a device has 1 to %d shares, not %d", SharesMax, options.Shares)
	}
	if vendor, class, found := strings.Cut(options.Resource, "/"); !found || vendor == "" || class == "" {
		return nil, fmt.Errorf("the resource %q has no form like burst.dev/rdma", options.Resource)
	}
	return &Plugin{options: options, watcher: watcher}, nil
}

// Run serves the kubelets that come and go until ctx ends. report gets one sentence for each start of a kubelet.
func (p *Plugin) Run(ctx context.Context, report func(string)) error {
	seen, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer seen.Close()
	if err := seen.Add(p.options.Directory); err != nil {
		return fmt.Errorf("%s: %w", p.options.Directory, err)
	}
	for ctx.Err() == nil {
		if err := p.serve(ctx, seen, report); err != nil {
			return err
		}
	}
	return nil
}

// serve listens and registers with one kubelet, and returns when another one has started.
func (p *Plugin) serve(ctx context.Context, seen *fsnotify.Watcher, report func(string)) error {
	own := filepath.Join(p.options.Directory, ownSocket)
	if err := os.Remove(own); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", own)
	if err != nil {
		return err
	}
	// The file may be another server's by then.
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer server.Stop()
	introduced, retry := file{}, make(<-chan time.Time)
	introduce := func() {
		// Before the registration: if another kubelet starts in between, its file is not this one.
		kubelet := p.kubelet()
		if err := p.register(ctx); err == nil {
			if kubelet == (file{}) {
				kubelet = p.kubelet()
			}
			introduced = kubelet
			report("registered as " + p.options.Resource)
		} else if ctx.Err() == nil {
			report(fmt.Sprintf("no kubelet yet: %v", err))
			retry = time.After(retryEvery)
		}
	}
	introduce()
	for {
		select {
		case <-ctx.Done():
			return os.Remove(own)
		case err := <-served:
			return err
		case err := <-seen.Errors:
			return err
		case <-retry:
			introduce()
		case event := <-seen.Events:
			if filepath.Base(event.Name) != kubeletSocket || !event.Has(fsnotify.Create) {
				continue
			}
			// The event may be older than the registration with the kubelet that it is about. But that kubelet may have removed our socket before.
			if _, err := os.Lstat(own); err != nil || p.kubelet() != introduced {
				return nil
			}
		}
	}
}

// file tells a file from a later one of its name, which may have its inode.
type file struct {
	inode uint64
	time  syscall.Timespec
}

// kubelet is the kubelet's socket; nothing if there is none.
func (p *Plugin) kubelet() file {
	var found syscall.Stat_t
	if err := syscall.Stat(filepath.Join(p.options.Directory, kubeletSocket), &found); err != nil {
		return file{}
	}
	return file{inode: found.Ino, time: found.Ctim}
}

// register introduces this plugin to the kubelet.
func (p *Plugin) register(ctx context.Context) error {
	socket := filepath.Join(p.options.Directory, kubeletSocket)
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: ownSocket, ResourceName: p.options.Resource, Options: &api.DevicePluginOptions{},
	})
	return err
}

// GetDevicePluginOptions says that nothing else is to be called.
func (p *Plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// shares are the parts of all devices: burst0-0, burst0-1 and so on.
func (p *Plugin) shares(state daemon.State) []*api.Device {
	made := make([]*api.Device, 0, len(state.Devices)*p.options.Shares)
	for _, device := range state.Devices {
		health := api.Unhealthy
		if state.Healthy(device.Name) {
			health = api.Healthy
		}
		for share := range p.options.Shares {
			made = append(made, &api.Device{ID: fmt.Sprintf("%s-%d", device.Name, share), Health: health})
		}
	}
	return made
}

// ListAndWatch sends all shares now and after each change.
func (p *Plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	for {
		state, changed := p.watcher.State()
		if err := stream.Send(&api.ListAndWatchResponse{Devices: p.shares(state)}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// Allocate says what each container gets. A device that cannot be used now is refused, so that the kubelet reports why the pod does not start.
func (p *Plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	state, _ := p.watcher.State()
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		// Several shares of one device are one device.
		var devices []string
		for _, share := range container.DevicesIds {
			device, _, found := cutLast(share, "-")
			if !found || !state.Healthy(device) {
				return nil, status.Errorf(codes.Unavailable, "%s cannot be used: its daemon does not serve, or its port is down", share)
			}
			if len(devices) == 0 || devices[len(devices)-1] != device {
				devices = append(devices, device)
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, p.container(devices))
	}
	return answer, nil
}

// container is what one container gets.
func (p *Plugin) container(devices []string) *api.ContainerAllocateResponse {
	made := &api.ContainerAllocateResponse{}
	if p.options.CDI {
		for _, device := range devices {
			made.CdiDevices = append(made.CdiDevices, &api.CDIDevice{Name: p.options.Node.ID(device)})
		}
		return made
	}
	made.Envs = p.options.Node.Environment()
	for place, host := range p.options.Node.Mounts() {
		made.Mounts = append(made.Mounts, &api.Mount{ContainerPath: place, HostPath: host, ReadOnly: true})
	}
	for _, device := range devices {
		for place, host := range p.options.Node.Nodes(device) {
			made.Devices = append(made.Devices, &api.DeviceSpec{ContainerPath: place, HostPath: host, Permissions: "rw"})
		}
	}
	return made
}

// cutLast cuts at the last separator: names of devices may contain it.
func cutLast(text, separator string) (string, string, bool) {
	at := strings.LastIndex(text, separator)
	if at < 0 {
		return text, "", false
	}
	return text[:at], text[at+len(separator):], true
}
