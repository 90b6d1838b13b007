package engine

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/catalogue"
)

var update = flag.Bool("update", false, "rewrite golden files")

// TestDiskFormat holds the names and forms of everything that is stored. A difference that is not an added
// field makes stores of earlier versions unreadable.
func TestDiskFormat(t *testing.T) {
	records := []any{
		clusterRecord{}, newestGrant{}, workflowRecord{}, allocRecord{}, holdRecord{}, nodeRecord{}, launchRecord{}, ConfigRevision{}, []Event{},
		reservationRecord{}, windowRecord{}, StatusEntry{},
		coordinator.Organization{}, coordinator.Group{}, coordinator.User{}, AuditEntry{}, longestLifetime{}, auth.UserToken{}, auth.JoinToken{}, auth.Revocation{},
		catalogue.Report{}, catalogue.Type{}, discoveryRecord{}, discoverySpent{}, unjoinedRecord{}, federateRecord{}, remoteRecord{}, routeRecord{}, pushRecord{},
	}
	var out bytes.Buffer
	for _, r := range records {
		v := reflect.New(reflect.TypeOf(r)).Elem()
		fill(v, 0)
		data, err := json.MarshalIndent(v.Interface(), "", "  ")
		if err != nil {
			t.Fatalf("%T: %v", r, err)
		}
		back := reflect.New(v.Type())
		if err := json.Unmarshal(data, back.Interface()); err != nil {
			t.Errorf("%T cannot be read back: %v", r, err)
		}
		again, err := json.MarshalIndent(back.Elem().Interface(), "", "  ")
		if err != nil || !bytes.Equal(data, again) {
			t.Errorf("%T changes when it is read back:\n%s\n%s", r, data, again)
		}
		out.WriteString(v.Type().String() + "\n" + string(data) + "\n")
	}
	const golden = "testdata/records.golden"
	if *update {
		if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), want) {
		t.Errorf("the disk format has changed (run with -update and read the difference):\n%s", out.Bytes())
	}
}

// fill sets every field to something that is not zero.
func fill(v reflect.Value, depth int) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() || f.Anonymous {
				fill(v.Field(i), depth+1)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth+1)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth+1)
		fill(value, depth+1)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	}
}
