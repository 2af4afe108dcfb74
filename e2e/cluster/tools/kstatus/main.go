// Says what kstatus and Flux's health check expressions make of objects.
//
// Standard input has one object per line as JSON, the only argument has the expressions (`current`, `failed`,
// `inProgress`) as JSON. Each line of the answer has both words for one object.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type answer struct {
	Kstatus status.Status `json:"kstatus"`
	Flux    status.Status `json:"flux"`
}

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(arguments []string, objects io.Reader, answers io.Writer) error {
	if len(arguments) != 1 {
		return errors.New("give the expressions as one argument of JSON")
	}
	var expressions kustomize.HealthCheckExpressions
	if err := json.Unmarshal([]byte(arguments[0]), &expressions); err != nil {
		return err
	}
	flux, err := cel.NewStatusEvaluator(&expressions)
	if err != nil {
		return err
	}
	lines := json.NewDecoder(objects)
	for {
		// Kubernetes' own decoder: kstatus wants whole numbers, not floats.
		var line json.RawMessage
		if err := lines.Decode(&line); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := judge(line, flux, answers); err != nil {
			return err
		}
	}
}

func judge(line []byte, flux *cel.StatusEvaluator, answers io.Writer) error {
	var object unstructured.Unstructured
	if err := object.UnmarshalJSON(line); err != nil {
		return err
	}
	plain, err := status.Compute(&object)
	if err != nil {
		return err
	}
	judged, err := flux.Evaluate(context.Background(), &object)
	if err != nil {
		return err
	}
	return json.NewEncoder(answers).Encode(answer{plain.Status, judged.Status})
}
