# Speaks to a cloud as any user of boto3 does, and compares all names in its answers with EC2's service model.
import base64, json, sys
import xml.etree.ElementTree as ET
import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

part, url, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
ec2 = boto3.client("ec2", endpoint_url=url, config=Config(retries={"total_max_attempts": 1}, parameter_validation=True))
strange, compared = set(), 0


def local(e):
    return e.tag.rsplit("}", 1)[-1]


def walk(e, shape, path):
    global compared
    if shape is None:
        strange.add(path)
        return
    if shape.type_name == "structure":
        names = {}
        for name, member in shape.members.items():
            names[member.serialization.get("name", name)] = member
        for child in e:
            compared += 1
            walk(child, names.get(local(child)), path + "/" + local(child))
    elif shape.type_name == "list":
        want = shape.member.serialization.get("name", "member")
        for child in e:
            if local(child) != want:
                strange.add(path + "/" + local(child))
            walk(child, shape.member, path + "/" + local(child))
    elif len(e):
        strange.add(path + " has parts")
    elif shape.type_name in ("integer", "long"):
        int(e.text)
    elif shape.type_name == "boolean" and e.text not in ("true", "false"):
        strange.add(path + " is " + str(e.text))
    elif getattr(shape, "enum", None) and e.text not in shape.enum and local(e) != "instanceType":
        strange.add(path + " is " + str(e.text))


def compare(http_response, model=None, parsed=None, **_):
    if http_response.status_code >= 300:
        return
    root = ET.fromstring(http_response.content)
    if local(root) != model.name + "Response":
        strange.add(local(root))
    for child in root:
        if local(child) == "requestId":
            continue
        names = {m.serialization.get("name", n): m for n, m in model.output_shape.members.items()}
        walk(child, names.get(local(child)), model.name + "/" + local(child))


ec2.meta.events.register("after-call.ec2.*", compare)


def code(call, **args):
    try:
        call(**args)
    except ClientError as e:
        return e.response["Error"]["Code"]
    return "none"


def launch(token, **args):
    all = dict(ImageId=given["image"], InstanceType="c5.large", MinCount=1, MaxCount=1, ClientToken=token, UserData="#!/bin/sh\ntrue\n",
               TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "fleet", "Value": "one"}]}],
               MetadataOptions={"HttpTokens": "required"})
    all.update(args)
    return ec2.run_instances(**all)


out = {}
fleet = [{"Name": "tag:fleet", "Values": ["one"]}]
if part == "launch":
    out["ids"] = [launch("token-%d" % n)["Instances"][0]["InstanceId"] for n in range(given["count"])]
    out["same"] = launch("token-0")["Instances"][0]["InstanceId"] == out["ids"][0]
    out["mismatch"] = code(launch, token="token-0", InstanceType="c5.metal")
    out["arch"] = code(launch, token="x", ImageId="ami-00000000000000000")
    out["big"] = code(launch, token="y", UserData="x" * (16 * 1024 + 1))
    out["early"] = code(ec2.terminate_instances, InstanceIds=out["ids"][:1])
    out["unseen"] = len(ec2.describe_instances(Filters=fleet)["Reservations"])
elif part == "look":
    pages = list(ec2.get_paginator("describe_instances").paginate(Filters=fleet))
    found = [i for p in pages for r in p["Reservations"] for i in r["Instances"]]
    out["pages"], out["seen"], out["state"] = len(pages), len(found), found[0]["State"]["Name"]
    assert {i["InstanceId"] for i in found} == set(given["ids"])
    assert found[0]["Tags"] == [{"Key": "fleet", "Value": "one"}] and found[0]["MetadataOptions"]["HttpTokens"] == "required"
    types = ec2.describe_instance_types(Filters=[{"Name": "instance-type", "Values": ["c5.*"]}])["InstanceTypes"]
    out["wild"] = len(types)
    out["nothing"] = len(ec2.describe_instance_types(Filters=[{"Name": "instance-type", "Values": ["nosuch.*"]}])["InstanceTypes"])
    out["absent"] = code(ec2.describe_instance_types, InstanceTypes=["t9.huge"])
    out["gpu"] = ec2.describe_instance_types(InstanceTypes=["g5.xlarge"])["InstanceTypes"][0]["GpuInfo"]["Gpus"][0]["Name"]
    out["capacity"] = code(launch, token="spot", InstanceMarketOptions={"MarketType": "spot"})
    out["zones"] = len(ec2.describe_instance_type_offerings(LocationType="availability-zone")["InstanceTypeOfferings"])
    out["prices"] = len(ec2.describe_spot_price_history(ProductDescriptions=["Linux/UNIX"])["SpotPriceHistory"])
else:
    ended = ec2.terminate_instances(InstanceIds=given["ids"])["TerminatingInstances"]
    out["ended"] = ended[0]["CurrentState"]["Name"]
    out["again"] = ec2.terminate_instances(InstanceIds=given["ids"])["TerminatingInstances"][0]["CurrentState"]["Name"]
    out["spent"] = code(launch, token="token-0")
    out["reason"] = ec2.describe_instances(InstanceIds=given["ids"][:1])["Reservations"][0]["Instances"][0]["StateReason"]["Code"]
assert compared > 5, "nothing was compared"
out["strange"] = sorted(strange)
print(json.dumps(out))
