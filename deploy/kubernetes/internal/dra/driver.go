// Package dra is a driver of dynamic resource allocation: the node's devices of Burst as a ResourceSlice, shared by any number of claims.
//
// Devices of a daemon that does not serve, and those with a port that is down, leave the slice, so that the scheduler places no pod there; pods that have
// them are shown as unhealthy by the kubelet. There is nothing to undo when a claim ends: what a container gets is the same for all.
package dra

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"burst.dev/kubernetes/internal/cdi"
	"burst.dev/kubernetes/internal/daemon"
	resource "k8s.io/api/resource/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// healthEvery is how often the kubelet is sent what it knows: it takes silence for "unknown" after 30 s.
const healthEvery = 10 * time.Second

// Driver implements [kubeletplugin.DRAPlugin].
type Driver struct {
	// Name is the driver's name, as burst.dev.
	Name string
	// Pool is the name of the node.
	Pool string
	// Node is what containers get.
	Node cdi.Node
	// Watcher knows the daemon.
	Watcher *daemon.Watcher
	// After is time.After, or a test's clock.
	After func(time.Duration) <-chan time.Time
	// Report gets a sentence for each error in the background.
	Report func(string)
}

var _ kubeletplugin.DRAPlugin = (*Driver)(nil)

// Resources is what the node offers in a state of its daemon.
func (d *Driver) Resources(state daemon.State) resourceslice.DriverResources {
	devices := []resource.Device{}
	for _, one := range state.Devices {
		if state.Healthy(one.Name) {
			devices = append(devices, offered(one))
		}
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.Pool: {Slices: []resourceslice.Slice{{Devices: devices}}}}}
}

// offered is one device with what a claim may select by.
func offered(one daemon.Device) resource.Device {
	shared, rdma := true, true
	attributes := map[resource.QualifiedName]resource.DeviceAttribute{
		"rdma":      {BoolValue: &rdma},
		"interface": {StringValue: &one.Interface},
		"pathMtu":   {IntValue: &one.PathMTU},
		"speedMbps": {IntValue: &one.SpeedMbps},
	}
	// The first address of each family: an attribute is one value.
	for _, text := range one.Addresses {
		address, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		name := resource.QualifiedName("ipv6")
		if address.Unmap().Is4() {
			name = "ipv4"
		}
		if _, known := attributes[name]; !known {
			attributes[name] = resource.DeviceAttribute{StringValue: &text}
		}
	}
	made := resource.Device{Name: one.Name, Attributes: attributes, AllowMultipleAllocations: &shared}
	if one.SpeedMbps > 0 {
		made.Capacity = map[resource.QualifiedName]resource.DeviceCapacity{"bandwidth": {Value: *quantity.NewQuantity(one.SpeedMbps*1_000_000, quantity.DecimalSI)}}
	}
	return made
}

// PrepareResourceClaims names what the runtime gives the pods of each claim.
func (d *Driver) PrepareResourceClaims(_ context.Context, claims []*resource.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	state, _ := d.Watcher.State()
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		results[claim.UID] = d.prepare(state, claim)
	}
	return results, nil
}

func (d *Driver) prepare(state daemon.State, claim *resource.ResourceClaim) kubeletplugin.PrepareResult {
	made := kubeletplugin.PrepareResult{}
	for _, one := range claim.Status.Allocation.Devices.Results {
		if one.Driver != d.Name {
			continue
		}
		if one.Pool != d.Pool || !state.Healthy(one.Device) {
			return kubeletplugin.PrepareResult{Err: fmt.Errorf("%s of %s cannot be used: its daemon does not serve, or its port is down", one.Device, one.Pool)}
		}
		made.Devices = append(made.Devices, kubeletplugin.Device{
			Requests: []string{one.Request}, PoolName: one.Pool, DeviceName: one.Device, ShareID: one.ShareID, CDIDeviceIDs: []string{d.Node.ID(one.Device)},
		})
	}
	return made
}

// UnprepareResourceClaims has nothing to undo.
func (d *Driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = nil
	}
	return results, nil
}

// HandleError reports an error in the background; what it was about is tried again.
func (d *Driver) HandleError(_ context.Context, err error, text string) {
	d.Report(fmt.Sprintf("%s: %v", text, err))
}

// WatchHealthStatus sends the health of all devices now, after each change, and now and then.
func (d *Driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		state, changed := d.Watcher.State()
		select {
		case reports <- d.health(state):
		case <-ctx.Done():
			return nil
		}
		select {
		case <-changed:
		case <-d.After(healthEvery):
		case <-ctx.Done():
			return nil
		}
	}
}

func (d *Driver) health(state daemon.State) kubeletplugin.DeviceHealthReport {
	report := kubeletplugin.DeviceHealthReport{Devices: []kubeletplugin.DeviceHealth{}}
	for _, one := range state.Devices {
		made := kubeletplugin.DeviceHealth{PoolName: d.Pool, DeviceName: one.Name, Health: kubeletplugin.HealthStatusHealthy}
		if !state.Healthy(one.Name) {
			made.Health, made.Message = kubeletplugin.HealthStatusUnhealthy, "the daemon does not serve, or its port is down"
		}
		report.Devices = append(report.Devices, made)
	}
	return report
}

// Publish keeps the node's ResourceSlice and the file of container runtimes as the daemon's devices are, until ctx ends.
func (d *Driver) Publish(ctx context.Context, directory string, publish func(context.Context, resourceslice.DriverResources) error) {
	for {
		state, changed := d.Watcher.State()
		if err := WriteFile(d.Node, directory, state); err != nil {
			d.Report(err.Error())
		}
		if err := publish(ctx, d.Resources(state)); err != nil && ctx.Err() == nil {
			d.Report(err.Error())
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// WriteFile writes the file of container runtimes for the devices of a state. Those of a daemon that has ended stay: containers that have them may restart.
func WriteFile(node cdi.Node, directory string, state daemon.State) error {
	names := []string{}
	for _, one := range state.Devices {
		names = append(names, one.Name)
	}
	slices.Sort(names)
	if len(names) == 0 {
		return nil
	}
	return node.Write(directory, names)
}
