// A client that knows nothing of the proxy: connections in goroutines, each sends random bytes and checks what comes back.
// usage: echo HOST PORT CONNECTIONS BYTES
package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"strconv"
)

func one(address string, size int, seed int64) error {
	sent := make([]byte, size)
	rand.New(rand.NewSource(seed)).Read(sent)
	peer, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer peer.Close()
	failed := make(chan error, 1)
	go func() {
		_, err := peer.Write(sent)
		if err == nil {
			err = peer.(*net.TCPConn).CloseWrite()
		}
		failed <- err
	}()
	got, err := io.ReadAll(peer)
	if err == nil {
		err = <-failed
	}
	if err == nil && !bytes.Equal(got, sent) {
		err = fmt.Errorf("%d bytes came back, and are not what was sent", len(got))
	}
	return err
}

func main() {
	count, _ := strconv.Atoi(os.Args[3])
	size, _ := strconv.Atoi(os.Args[4])
	ended := make(chan error)
	for i := 0; i < count; i++ {
		go func(seed int64) { ended <- one(net.JoinHostPort(os.Args[1], os.Args[2]), size, seed) }(int64(i))
	}
	whole := 0
	for i := 0; i < count; i++ {
		if err := <-ended; err != nil {
			fmt.Println(err)
		} else {
			whole++
		}
	}
	fmt.Println(whole, "connections are whole")
}
