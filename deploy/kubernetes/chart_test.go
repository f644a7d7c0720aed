// Package kubernetes holds nothing but a test of the manifests: what helm renders of the chart, and the examples, are objects that Kubernetes knows.
package kubernetes

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// decoded reads the objects of a file; an unknown or repeated field is an error.
func decoded(t *testing.T, text []byte) []runtime.Object {
	t.Helper()
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var made []runtime.Object
	for _, one := range bytes.Split(append([]byte("\n"), text...), []byte("\n---")) {
		// Through JSON, because anchors of YAML are not JSON's.
		plain, err := yaml.YAMLToJSONStrict(one)
		if err != nil {
			t.Fatal(err)
		}
		if string(plain) == "null" {
			continue
		}
		object, _, err := decoder.Decode(plain, nil, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, one)
		}
		made = append(made, object)
	}
	return made
}

func helm(t *testing.T, words ...string) (string, error) {
	t.Helper()
	program := os.Getenv("HELM")
	if program == "" {
		t.Skip("HELM names no helm: make kubernetes builds one and runs this test")
	}
	said, err := exec.Command(program, words...).CombinedOutput()
	return string(said), err
}

func TestHelmFindsNoFaultInTheChart(t *testing.T) {
	if said, err := helm(t, "lint", "--strict", "chart"); err != nil {
		t.Fatal(said)
	}
}

// kinds are the types of objects in order.
func kinds(objects []runtime.Object) []string {
	var made []string
	for _, one := range objects {
		made = append(made, one.GetObjectKind().GroupVersionKind().Kind)
	}
	slices.Sort(made)
	return made
}

func rendered(t *testing.T, words ...string) []runtime.Object {
	t.Helper()
	said, err := helm(t, append([]string{"template", "burst", "chart", "--kube-version", "1.36.0"}, words...)...)
	if err != nil {
		t.Fatal(said)
	}
	return decoded(t, []byte(said))
}

func TestTheChartOfADriver(t *testing.T) {
	objects := rendered(t, "--set", "extendedResource=true,daemon.port=udp:dev=eth1,nodeSelector.a=b")
	if found := kinds(objects); !slices.Equal(found, []string{"ClusterRole", "ClusterRoleBinding", "DaemonSet", "DeviceClass", "ServiceAccount"}) {
		t.Fatal(found)
	}
	for _, one := range objects {
		switch object := one.(type) {
		case *resource.DeviceClass:
			if *object.Spec.ExtendedResourceName != "burst.dev/rdma" || object.Spec.Selectors[0].CEL.Expression != `device.driver == "burst.dev"` {
				t.Fatal(object)
			}
		case *apps.DaemonSet:
			pod := object.Spec.Template.Spec
			if pod.NodeSelector["a"] != "b" || !slices.Contains(pod.Containers[0].Command, "--port=udp:dev=eth1") || !*pod.AutomountServiceAccountToken {
				t.Fatal(pod)
			}
			unprivileged(t, pod)
		}
	}
}

func TestTheChartOfADevicePluginNeedsNoRights(t *testing.T) {
	objects := rendered(t, "--set", "mode=device-plugin,resourceName=rdma/rdma_shared_device_a,cdi=false")
	if found := kinds(objects); !slices.Equal(found, []string{"DaemonSet", "ServiceAccount"}) {
		t.Fatal(found)
	}
	for _, one := range objects {
		if object, ok := one.(*apps.DaemonSet); ok {
			words := object.Spec.Template.Spec.Containers[1].Command
			if !slices.Contains(words, "--resource-name=rdma/rdma_shared_device_a") || !slices.Contains(words, "--cdi=false") || *object.Spec.Template.Spec.AutomountServiceAccountToken {
				t.Fatal(words)
			}
		}
	}
}

// unprivileged says that no container can become more than it is, and that each mount has its volume.
func unprivileged(t *testing.T, pod core.PodSpec) {
	t.Helper()
	var volumes []string
	for _, one := range pod.Volumes {
		volumes = append(volumes, one.Name)
	}
	for _, one := range append(slices.Clone(pod.InitContainers), pod.Containers...) {
		rights := one.SecurityContext
		if rights == nil || rights.Privileged != nil || *rights.AllowPrivilegeEscalation || !*rights.ReadOnlyRootFilesystem || !slices.Contains(rights.Capabilities.Drop, "ALL") {
			t.Fatal(one.Name, rights)
		}
		for _, mount := range one.VolumeMounts {
			if !slices.Contains(volumes, mount.Name) {
				t.Fatal(one.Name, mount)
			}
		}
	}
}

func TestValuesThatCannotBeAreRefused(t *testing.T) {
	for _, bad := range []string{"mode=csi", "shares=0", "resourceName=rdma", "nonsense=1", "socketDirectory=run"} {
		if said, err := helm(t, "template", "burst", "chart", "--set", bad); err == nil {
			t.Fatal(bad, said)
		}
	}
}

func TestTheExamplesAreObjectsOfKubernetes(t *testing.T) {
	files, _ := filepath.Glob("pod-mode/*.yaml")
	for _, file := range append(files, "claim-example.yaml") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range decoded(t, text) {
			if pod, ok := one.(*core.Pod); ok && strings.HasPrefix(file, "pod-mode") {
				unprivileged(t, pod.Spec)
				if !*pod.Spec.SecurityContext.RunAsNonRoot || pod.Spec.HostNetwork || pod.Spec.HostPID {
					t.Fatal(pod)
				}
			}
		}
	}
	if len(files) < 2 {
		t.Fatal(files)
	}
}
