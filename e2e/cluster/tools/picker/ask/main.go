// Asks an endpoint picker over ext_proc, as Envoy does for a gateway.
//
// Arguments: the picker's address, and how many completions to ask about. Each line of the answer has the endpoint that
// was picked for one of them, or the status with which the gateway is to answer in its place.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	destination = "x-gateway-destination-endpoint"
	timeout     = 20 * time.Second
	body        = `{"model": "Qwen/Qwen3-8B", "prompt": "hello", "max_tokens": 4}`
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(arguments []string, answers io.Writer) error {
	if len(arguments) != 2 {
		return errors.New("give the picker's address, and how often to ask")
	}
	count, err := strconv.Atoi(arguments[1])
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient(arguments[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	for number := range count {
		picked, err := pick(extproc.NewExternalProcessorClient(connection), fmt.Sprint("request-", number))
		if err != nil {
			return err
		}
		fmt.Fprintln(answers, picked)
	}
	return nil
}

// A stream for each request: headers, then the body, and the picker answers once it has both.
func pick(picker extproc.ExternalProcessorClient, id string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	stream, err := picker.Process(ctx)
	if err != nil {
		return "", err
	}
	headers := &core.HeaderMap{}
	for _, each := range [][2]string{
		{":method", "POST"}, {":path", "/v1/completions"}, {"content-type", "application/json"}, {"x-request-id", id},
	} {
		headers.Headers = append(headers.Headers, &core.HeaderValue{Key: each[0], RawValue: []byte(each[1])})
	}
	for _, request := range []*extproc.ProcessingRequest{
		{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: headers}}},
		{Request: &extproc.ProcessingRequest_RequestBody{
			RequestBody: &extproc.HttpBody{Body: []byte(body), EndOfStream: true},
		}},
	} {
		if err := stream.Send(request); err != nil {
			return "", err
		}
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return "", err
		}
		if instead := response.GetImmediateResponse(); instead != nil {
			return fmt.Sprint(int32(instead.GetStatus().GetCode())), nil
		}
		for _, each := range response.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
			if each.GetHeader().GetKey() == destination {
				return string(each.GetHeader().GetRawValue()), nil
			}
		}
	}
}
