// Command crdcheck says whether an API server of this version accepts a CustomResourceDefinition (YAML on stdin):
// with the code by which it validates a new one, CEL rules and their cost included.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = check(text)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func check(text []byte) error {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(apiextensions.SchemeGroupVersion)
	object, _, err := decoder.Decode(text, nil, nil)
	if err != nil {
		return err
	}
	definition := object.(*apiextensions.CustomResourceDefinition)
	return validation.ValidateCustomResourceDefinition(context.Background(), definition).ToAggregate()
}
