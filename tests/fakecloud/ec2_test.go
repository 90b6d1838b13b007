package fakecloud

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const someImage = "ami-0123456789abcdef0"

// python finds an interpreter that has Debian's client library of EC2.
func python(t *testing.T) string {
	t.Helper()
	for _, p := range []string{"/usr/bin/python3", "python3"} {
		if exec.Command(p, "-c", "import boto3").Run() == nil {
			return p
		}
	}
	t.Fatal("there is no Python with boto3: install python3-boto3 (make deps)")
	return ""
}

// TestOtherClients: a client of another make gets on with the front-end, and every name in its answers is one of EC2's service model.
func TestOtherClients(t *testing.T) {
	t.Parallel()
	c := New(Options{Types: append(someTypes(), Type{Name: "g5.xlarge", VCPUs: 4, Cores: 2, Memory: 16384, Arch: "amd64", GPUs: 1, GPU: "A10G", Spot: true, Price: 1.006}),
		Page: 5, Appears: 10 * time.Second, Boots: 20 * time.Second})
	front := &EC2{Cloud: c, Region: "us-east-1", Images: map[string]string{someImage: "x86_64"}}
	srv := httptest.NewServer(c.Serve(front))
	t.Cleanup(func() { srv.Close(); c.Close() })
	interpreter := python(t)
	run := func(part string, input map[string]any) map[string]any {
		t.Helper()
		text, err := json.Marshal(input)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(interpreter, "testdata/ec2_client.py", part, srv.URL, string(text))
		cmd.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID=AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY=none", "AWS_DEFAULT_REGION=us-east-1", "AWS_CONFIG_FILE=/dev/null",
			"AWS_EC2_METADATA_DISABLED=true", "PYTHONWARNINGS=ignore")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", part, err, stderr.String())
		}
		var got map[string]any
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%s: %v\n%s", part, err, out)
		}
		if names, ok := got["strange"].([]any); !ok || len(names) > 0 {
			t.Errorf("%s: names that EC2 does not have, or nothing was compared: %v", part, got["strange"])
		}
		return got
	}
	first := run("launch", map[string]any{"image": someImage, "count": 7})
	if first["same"] != true || first["mismatch"] != "IdempotentParameterMismatch" || first["arch"] != "InvalidAMIID.NotFound" || first["early"] != "InvalidInstanceID.NotFound" ||
		first["big"] != "InvalidParameterValue" || first["unseen"] != 0.0 {
		t.Errorf("launches: %v", first)
	}
	c.Advance(time.Minute)
	c.Empty("c5.large", "", Spot, true)
	second := run("look", map[string]any{"image": someImage, "ids": first["ids"]})
	if second["seen"] != 7.0 || second["state"] != "running" || second["pages"] != 2.0 || second["wild"] != 2.0 || second["nothing"] != 0.0 || second["absent"] != "InvalidInstanceType" ||
		second["capacity"] != "InsufficientInstanceCapacity" || second["zones"] != 9.0 || second["prices"] != 6.0 || second["gpu"] != "A10G" {
		t.Errorf("what is there: %v", second)
	}
	third := run("end", map[string]any{"image": someImage, "ids": first["ids"]})
	if third["ended"] != "shutting-down" || third["again"] != "shutting-down" && third["again"] != "terminated" || third["spent"] != "IdempotentInstanceTerminated" || third["reason"] != "Client.UserInitiatedShutdown" {
		t.Errorf("ends: %v", third)
	}
	if c.Live() != 0 {
		t.Errorf("%d instances are left", c.Live())
	}
}

// TestBucket: as many calls at once as it holds, and a fifth of that each second.
func TestBucket(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := New(Options{Now: func() time.Time { return now }})
	front := &EC2{Cloud: c, Bucket: 50}
	for range 50 {
		if !front.take() {
			t.Fatal("the bucket is empty before its time")
		}
	}
	if front.take() {
		t.Error("the bucket has no bottom")
	}
	now = now.Add(time.Second)
	n := 0
	for front.take() {
		n++
	}
	if n != 10 {
		t.Errorf("%d calls came back in a second", n)
	}
}
