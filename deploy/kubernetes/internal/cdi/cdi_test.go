package cdi

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	runtimes "tags.cncf.io/container-device-interface/pkg/cdi"
)

// What the library of container runtimes makes of the file.
func TestARuntimeGivesAContainerTheDevice(t *testing.T) {
	directory := t.TempDir()
	node := Node{Kind: "burst.dev/rdma", Socket: "/run/burst/burstd.sock", Libraries: "/var/lib/burst/lib", LibraryPath: true}
	if err := node.Write(directory, []string{"burst0", "burst1"}); err != nil {
		t.Fatal(err)
	}
	cache, err := runtimes.NewCache(runtimes.WithSpecDirs(directory), runtimes.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if found := cache.ListDevices(); !slices.Equal(found, []string{"burst.dev/rdma=burst0", "burst.dev/rdma=burst1"}) {
		t.Fatal(found)
	}
	container := &oci.Spec{Process: &oci.Process{}, Linux: &oci.Linux{}}
	if missing, err := cache.InjectDevices(container, node.ID("burst0")); err != nil {
		t.Fatal(missing, err)
	}
	if !slices.Contains(container.Process.Env, "LD_LIBRARY_PATH=/usr/lib/burst") || !slices.Contains(container.Process.Env, "BURST_SOCKET=/run/burst/burstd.sock") {
		t.Fatal(container.Process.Env)
	}
	if len(container.Mounts) != 2 || container.Mounts[0].Source != "/run/burst" || container.Mounts[1].Source != "/var/lib/burst/lib" {
		t.Fatal(container.Mounts)
	}
	if nodes := container.Linux.Devices; len(nodes) != 1 || nodes[0].Path != "/dev/infiniband/burst0" || nodes[0].Major != 1 || nodes[0].Minor != 7 {
		t.Fatal(nodes)
	}
}

func TestAnImagesSearchPathAndUserNamespacesAreOptions(t *testing.T) {
	plain := Node{Socket: "/s/burstd.sock"}.Environment()
	if _, set := plain["LD_LIBRARY_PATH"]; set || plain["BURST_TRUST_SOCKET_OF"] != "" {
		t.Fatal(plain)
	}
	if made := (Node{TrustUnmapped: true, Userfaultfd: true}); made.Environment()["BURST_TRUST_SOCKET_OF"] != "65534" || made.Nodes("burst0")["/dev/userfaultfd"] == "" {
		t.Fatal(made.Environment(), made.Nodes("burst0"))
	}
}

func TestNothingElseLiesInTheDirectory(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "cdi")
	node := Node{Kind: "example.com/rdma"}
	for range 2 {
		if err := node.Write(directory, nil); err != nil {
			t.Fatal(err)
		}
	}
	if found, _ := os.ReadDir(directory); len(found) != 1 || found[0].Name() != "example.com-rdma.json" {
		t.Fatal(found)
	}
	if err := (Node{}).Write("/proc/nonexistent", nil); err == nil {
		t.Fatal("written where nothing can be")
	}
}
