// A program that elects with client-go, as its documentation shows it.
//
//	elector KUBECONFIG NAMESPACE LEASE LEASE_SECONDS STAMPS OWNER [SECONDS]
//
// While it leads it appends "OWNER TERM PID BOOT_NANOSECONDS" to STAMPS every two milliseconds. Its term counts its own
// leaderships and says nothing to others. After SECONDS as a leader it gives the Lease back and waits a while; without them
// it leads until it is killed.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func stamp(file *os.File, owner string, term int) {
	var now unix.Timespec
	must(unix.ClockGettime(unix.CLOCK_BOOTTIME, &now))
	_, err := file.WriteString(fmt.Sprintf("%s %d %d %d\n", owner, term, os.Getpid(), now.Nano()))
	must(err)
}

func main() {
	kubeconfig, namespace, name, stamps, owner := os.Args[1], os.Args[2], os.Args[3], os.Args[5], os.Args[6]
	seconds, err := strconv.Atoi(os.Args[4])
	must(err)
	lease := time.Duration(seconds) * time.Second
	leads := time.Duration(1<<63 - 1)
	if len(os.Args) > 7 {
		leads, err = time.ParseDuration(os.Args[7] + "s")
		must(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	must(err)
	client := kubernetes.NewForConfigOrDie(config)
	file, err := os.OpenFile(stamps, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	must(err)
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  meta.ObjectMeta{Name: name, Namespace: namespace},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: fmt.Sprintf("%s-%d", owner, os.Getpid())},
	}
	for term := 1; ; term++ {
		ctx, cancel := context.WithCancel(context.Background())
		// What is released must have ended: it cancels what it runs in.
		work := func(led context.Context) {
			for began := time.Now(); led.Err() == nil && time.Since(began) < leads; time.Sleep(2 * time.Millisecond) {
				stamp(file, owner, term)
			}
			cancel()
		}
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock:            lock,
			LeaseDuration:   lease,
			RenewDeadline:   lease * 7 / 10,
			RetryPeriod:     lease / 5,
			ReleaseOnCancel: true,
			Callbacks:       leaderelection.LeaderCallbacks{OnStartedLeading: work, OnStoppedLeading: func() {}},
		})
		time.Sleep(1500 * time.Millisecond)
	}
}
