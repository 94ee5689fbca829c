// A producer, a consumer group and an administrator of franz-go: `main HOST:PORT`. Prints one line of JSON.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func must(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	seeds := kgo.SeedBrokers(os.Args[1])
	topic := "franz"
	cl, err := kgo.NewClient(seeds, kgo.DefaultProduceTopic(topic))
	must(err)
	adm := kadm.NewClient(cl)
	_, err = adm.CreateTopic(ctx, 3, -1, nil, topic)
	must(err)
	for i := 0; i < 1000; i++ {
		r := kgo.KeySliceRecord([]byte(fmt.Sprint(i%7)), []byte(fmt.Sprintf("m%d", i)))
		cl.Produce(ctx, r, func(_ *kgo.Record, err error) { must(err) })
	}
	must(cl.Flush(ctx))
	group, err := kgo.NewClient(seeds, kgo.ConsumerGroup("franz"), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(err)
	got := map[string]bool{}
	for len(got) < 1000 {
		fs := group.PollFetches(ctx)
		must(fs.Err())
		fs.EachRecord(func(r *kgo.Record) { got[string(r.Value)] = true })
	}
	must(group.CommitUncommittedOffsets(ctx))
	lag, err := adm.Lag(ctx, "franz")
	must(err)
	fmt.Printf("{\"got\": %d, \"lag\": %d, \"state\": %q}\n", len(got), lag["franz"].Lag.Total(), lag["franz"].State)
	group.Close()
	_, err = adm.DeleteTopics(ctx, topic)
	must(err)
	cl.Close()
}
