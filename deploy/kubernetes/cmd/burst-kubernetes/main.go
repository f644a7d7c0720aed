// Command burst-kubernetes offers the devices of a node's burstd to pods: as a driver of dynamic resource allocation, or as a device plugin.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"burst.dev/kubernetes/internal/cdi"
	"burst.dev/kubernetes/internal/daemon"
	"burst.dev/kubernetes/internal/dra"
	"burst.dev/kubernetes/internal/plugin"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// flags are the command line.
type flags struct {
	mode, resource, driver, socket, libraries, kubelet, cdi, node, kubeconfig, program, watch string
	shares                                                                                    int
	useCDI, libraryPath, trustUnmapped                                                        bool
}

func parse(words []string) (flags, error) {
	var f flags
	set := flag.NewFlagSet("burst-kubernetes", flag.ContinueOnError)
	set.StringVar(&f.mode, "mode", "dra", "dra (Kubernetes 1.34 and newer) or device-plugin")
	set.StringVar(&f.resource, "resource-name", "burst.dev/rdma", "what pods name in resources.limits (device-plugin), and the kind of CDI devices")
	set.StringVar(&f.driver, "driver-name", "burst.dev", "the driver's name in device classes (dra)")
	set.IntVar(&f.shares, "shares", 100, "how many pods may share a device (device-plugin)")
	set.StringVar(&f.socket, "socket", "/run/burst/burstd.sock", "control socket of the node's daemon")
	set.StringVar(&f.libraries, "libraries", "/usr/lib/burst", "directory of Burst's libraries on the node")
	set.StringVar(&f.kubelet, "kubelet-directory", "/var/lib/kubelet", "the kubelet's directory")
	set.StringVar(&f.cdi, "cdi-directory", "/var/run/cdi", "where container runtimes look for devices")
	set.BoolVar(&f.useCDI, "cdi", true, "name devices to the runtime by CDI; false for runtimes without it (device-plugin)")
	set.BoolVar(&f.libraryPath, "library-path", true, "set LD_LIBRARY_PATH in containers, in place of the image's own")
	set.BoolVar(&f.trustUnmapped, "trust-unmapped", false, "let programs in user namespaces of their own (hostUsers: false) trust the node's daemon")
	set.StringVar(&f.node, "node-name", os.Getenv("NODE_NAME"), "this node's name (dra)")
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "how to reach the API server; default: the pod's service account (dra)")
	set.StringVar(&f.program, "burst", "/usr/bin/burst", "the command burst")
	set.StringVar(&f.watch, "watch", "ibv_asyncwatch -d", "a program that ends with the daemon whose device is its last word")
	if err := set.Parse(words); err != nil {
		return f, err
	}
	switch {
	case set.NArg() > 0:
		return f, fmt.Errorf("there is no argument %q", set.Arg(0))
	case f.mode != "dra" && f.mode != "device-plugin":
		return f, fmt.Errorf("there is no mode %q: dra, device-plugin", f.mode)
	case f.mode == "dra" && f.node == "":
		return f, errors.New("the name of this node is missing: --node-name, or the variable NODE_NAME")
	}
	return f, nil
}

func main() {
	f, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "burst-kubernetes:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, f); err != nil {
		fmt.Fprintln(os.Stderr, "burst-kubernetes:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, f flags) error {
	report := func(text string) { slog.Info(text) }
	_, missing := os.Stat("/dev/userfaultfd")
	node := cdi.Node{Kind: f.resource, Socket: f.socket, Libraries: f.libraries, LibraryPath: f.libraryPath, TrustUnmapped: f.trustUnmapped, Userfaultfd: missing == nil}
	watcher := daemon.NewWatcher(daemon.Burst{Program: f.program, Socket: f.socket, Watch: strings.Fields(f.watch)}, time.After)
	go watcher.Run(ctx, report)
	if f.mode == "dra" {
		return serveClaims(ctx, f, node, watcher, report)
	}
	one, err := plugin.New(plugin.Options{Directory: filepath.Join(f.kubelet, "device-plugins"), Resource: f.resource, Shares: f.shares, Node: node, CDI: f.useCDI}, watcher)
	if err != nil {
		return err
	}
	if f.useCDI {
		go keepFile(ctx, node, f.cdi, watcher, report)
	}
	return one.Run(ctx, report)
}

// keepFile keeps the file of container runtimes as the daemon's devices are.
func keepFile(ctx context.Context, node cdi.Node, directory string, watcher *daemon.Watcher, report func(string)) {
	for ctx.Err() == nil {
		state, changed := watcher.State()
		if err := dra.WriteFile(node, directory, state); err != nil {
			report(err.Error())
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// serveClaims is the driver.
func serveClaims(ctx context.Context, f flags, node cdi.Node, watcher *daemon.Watcher, report func(string)) error {
	configuration, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig)
	if f.kubeconfig == "" {
		configuration, err = rest.InClusterConfig()
	}
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(configuration)
	if err != nil {
		return err
	}
	data := filepath.Join(f.kubelet, "plugins", f.driver)
	if err := os.MkdirAll(data, 0o750); err != nil {
		return err
	}
	driver := &dra.Driver{Name: f.driver, Pool: f.node, Node: node, Watcher: watcher, After: time.After, Report: report}
	helper, err := kubeletplugin.Start(ctx, driver, kubeletplugin.DriverName(f.driver), kubeletplugin.NodeName(f.node), kubeletplugin.KubeClient(client),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(f.kubelet, "plugins_registry")), kubeletplugin.PluginDataDirectoryPath(data))
	if err != nil {
		return err
	}
	defer helper.Stop()
	driver.Publish(ctx, f.cdi, helper.PublishResources)
	return nil
}
