// Package cdi writes what a container gets that uses a device of Burst: a file of the Container Device Interface, which container runtimes read.
//
// A container gets the daemon's socket, Burst's libraries, a character node that some programs look for, and /dev/userfaultfd where the node has it: the
// runtimes' default seccomp profiles refuse the system call, and without it the daemon reaches registered memory through /proc/PID/mem.
package cdi

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

const (
	// SocketDirectory is where a container sees the daemon's socket.
	SocketDirectory = "/run/burst"
	// LibraryDirectory is where a container sees Burst's libraries.
	LibraryDirectory = "/usr/lib/burst"
	// The number of /dev/full: the node can be opened, and whoever takes it for a kernel's device gets an error from each write.
	fullMajor, fullMinor = 1, 7
	version              = "0.6.0"
)

// Node is what of the node a container is given.
type Node struct {
	// Kind is the vendor and class of the devices, as burst.dev/rdma.
	Kind string
	// Socket is the path of the daemon's control socket on the node.
	Socket string
	// Libraries is the directory of Burst's libraries on the node.
	Libraries string
	// LibraryPath says whether LD_LIBRARY_PATH is set. It replaces that of the image.
	LibraryPath bool
	// TrustUnmapped says whether programs trust a daemon whose user has no number in their user namespace (pods with hostUsers: false).
	TrustUnmapped bool
	// Userfaultfd says whether the node has /dev/userfaultfd.
	Userfaultfd bool
}

// Environment is the variables of a container.
func (n Node) Environment() map[string]string {
	made := map[string]string{
		"BURST_SOCKET":      filepath.Join(SocketDirectory, filepath.Base(n.Socket)),
		"NCCL_IBVERBS_LIB":  filepath.Join(LibraryDirectory, "libibverbs.so.1"),
		"NCCL_IB_GID_INDEX": "0",
	}
	if n.LibraryPath {
		made["LD_LIBRARY_PATH"] = LibraryDirectory
	}
	if n.TrustUnmapped {
		made["BURST_TRUST_SOCKET_OF"] = "65534"
	}
	return made
}

// Mounts is the directories of the node that a container sees, by their path in the container. All are read-only: connecting to a socket is no writing.
func (n Node) Mounts() map[string]string {
	return map[string]string{SocketDirectory: filepath.Dir(n.Socket), LibraryDirectory: n.Libraries}
}

// Nodes is the character nodes, by their path in the container.
func (n Node) Nodes(device string) map[string]string {
	made := map[string]string{"/dev/infiniband/" + device: "/dev/full"}
	if n.Userfaultfd {
		made["/dev/userfaultfd"] = "/dev/userfaultfd"
	}
	return made
}

// Spec is the file of these devices.
func (n Node) Spec(devices []string) *specs.Spec {
	made := &specs.Spec{Version: version, Kind: n.Kind, ContainerEdits: specs.ContainerEdits{}}
	environment := n.Environment()
	for _, name := range sorted(environment) {
		made.ContainerEdits.Env = append(made.ContainerEdits.Env, name+"="+environment[name])
	}
	mounts := n.Mounts()
	for _, place := range sorted(mounts) {
		made.ContainerEdits.Mounts = append(made.ContainerEdits.Mounts, &specs.Mount{HostPath: mounts[place], ContainerPath: place, Options: []string{"ro", "nosuid", "nodev", "bind"}})
	}
	for _, device := range devices {
		nodes := n.Nodes(device)
		one := specs.Device{Name: device}
		for _, place := range sorted(nodes) {
			node := &specs.DeviceNode{Path: place, HostPath: nodes[place], Permissions: "rw"}
			if nodes[place] == "/dev/full" {
				node.Type, node.Major, node.Minor = "c", fullMajor, fullMinor
			}
			one.ContainerEdits.DeviceNodes = append(one.ContainerEdits.DeviceNodes, node)
		}
		made.Devices = append(made.Devices, one)
	}
	return made
}

// ID is the name by which a runtime is asked for a device.
func (n Node) ID(device string) string { return n.Kind + "=" + device }

// File is the path of the file below a directory such as /var/run/cdi.
func (n Node) File(directory string) string {
	return filepath.Join(directory, strings.ReplaceAll(n.Kind, "/", "-")+".json")
}

// Write writes the file of these devices in one step: a runtime reads the old one or the new one.
func (n Node) Write(directory string, devices []string) error {
	text, err := json.MarshalIndent(n.Spec(devices), "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	file := n.File(directory)
	// Runtimes read each file that ends with .json.
	fresh := file + ".new"
	if err := os.WriteFile(fresh, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("no file for container runtimes: %w", err)
	}
	return os.Rename(fresh, file)
}
