#!/usr/bin/env python3
"""Answers images with the people of a golden file, and misbehaves on request: what a regression must notice."""

import json
import sys

import rospy
from sensor_msgs.msg import Image

from edge_offload_msgs.msg import Latency, Person, PersonArray

GOLDEN, FAULTS = rospy.myargv(sys.argv)[1:3]
"""The golden file, and which fault happens at which frame: ``3:restamp,4:alter``."""


def main():
    with open(GOLDEN, encoding="utf-8") as stream:
        golden = json.load(stream)
    frames = {frame["stamp_ns"]: (index, frame) for index, frame in enumerate(golden["frames"])}
    faults = dict(item.split(":") for item in FAULTS.split(",") if item)
    rospy.init_node("kapao_node")
    rospy.set_param("~weights_sha256", golden["weights_sha256"])
    people = rospy.Publisher("kapao/people", PersonArray, queue_size=10)
    latency = rospy.Publisher("offload/latency", Latency, queue_size=10)

    def answer(image):
        index, frame = frames[image.header.stamp.to_nsec()]
        fault = faults.get(str(index), "")
        result = PersonArray(header=image.header, model=golden["model"], mode=golden["mode"])
        for entry in frame["people"]:
            person = Person(id=entry["id"], score=entry["score"])
            person.x_min, person.y_min, person.x_max, person.y_max = entry["box"]
            result.people.append(person)
        cost = Latency(header=image.header, model=golden["model"], mode=golden["mode"])
        if fault == "restamp":
            result.header.stamp += rospy.Duration(0, 1)
        if fault == "alter":
            result.people[0].x_min += 1
        if fault == "lose_person":
            result.people.pop()
        if fault == "score":
            result.people[0].score += 0.01
        if fault != "drop":
            people.publish(result)
        if fault == "duplicate":
            people.publish(result)
        if fault != "drop_latency":
            latency.publish(cost)

    rospy.Subscriber("camera/image_raw", Image, answer, queue_size=10)
    rospy.spin()


main()
