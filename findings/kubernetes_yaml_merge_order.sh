#!/usr/bin/env bash
# A manifest with YAML's merge key: what kubectl reads depends on whether `<<` is written before or after a mapping's own
# keys, and the strict reader of the same library takes neither.
#
# Versions: k8s.io/apimachinery 0.36.0 and sigs.k8s.io/yaml 1.6.0, beside go.yaml.in/yaml/v3 3.0.4.
# Guess: a mapping's own keys win over merged ones in any order, as YAML's text on the merge key has it, and as
#   go.yaml.in/yaml/v3 and PyYAML read it.
# Seen: with `<<` first the mapping's own value wins; with `<<` after it the merged value replaces it, without a word
#   (kubectl 1.37.2 prints the same). UnmarshalStrict refuses both as `key "gpus" already set in map`, so a merge can add
#   keys there and never be overridden.
# Why it matters: manifests share the resources of workers by an anchor and override the number of GPUs. kubectl then
#   starts workers with other GPUs than a reader that follows YAML's rules would tell.
#
# Exits 0 while that is so, 1 when it is not, 2 where it could not be tried.
set -euo pipefail
T=$(mktemp -d)
trap 'chmod -R u+w "$T"; rm -rf "$T"' EXIT
cd "$T"

cat >main.go <<'END'
package main

import (
	"fmt"
	"os"
	"strings"

	plain "go.yaml.in/yaml/v3"
	kube "k8s.io/apimachinery/pkg/util/yaml"
	sigs "sigs.k8s.io/yaml"
)

const (
	first = "common: &common {gpus: four, queue: gold}\njob:\n  <<: *common\n  gpus: two\n"
	last  = "common: &common {gpus: four, queue: gold}\njob:\n  gpus: two\n  <<: *common\n"
)

type document struct {
	Job map[string]string `json:"job" yaml:"job"`
}

func asKubectl(text string) string {
	var found document
	if err := kube.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096).Decode(&found); err != nil {
		return err.Error()
	}
	return found.Job["gpus"]
}

func strictly(text string) string {
	var found document
	if err := sigs.UnmarshalStrict([]byte(text), &found); err != nil {
		return err.Error()
	}
	return found.Job["gpus"]
}

func byTheBook(text string) string {
	var found document
	if err := plain.Unmarshal([]byte(text), &found); err != nil {
		return err.Error()
	}
	return found.Job["gpus"]
}

func main() {
	same := true
	for _, one := range []struct{ order, text, kubectl string }{{"<< first", first, "two"}, {"<< last", last, "four"}} {
		kubectl, strict, book := asKubectl(one.text), strictly(one.text), byTheBook(one.text)
		fmt.Printf("%s: apimachinery %q, yaml/v3 %q, strict %q\n", one.order, kubectl, book, strict)
		same = same && kubectl == one.kubectl && book == "two" && strings.Contains(strict, "already set in map")
	}
	if !same {
		os.Exit(1)
	}
}
END

{
  export GOFLAGS=-mod=mod GOPATH="$T/go" GOCACHE="$T/cache"
  go mod init finding
  go get k8s.io/apimachinery@v0.36.0 sigs.k8s.io/yaml@v1.6.0 go.yaml.in/yaml/v3@v3.0.4
  go build -o finding .
} >"$T/log" 2>&1 || { cat "$T/log" >&2; exit 2; }
./finding
