"""What becomes of every field of every message that nodes take in, and where every field comes from that they publish.

One line for fields with the same answer: ``names | answer``. Answers are

``used``                 changing it changes what the example (test_message_fields.py) gives
``used in FILE ...``     these files of src/edge_offload read it
``ignored: why``         changing it changes nothing of the example
``set``                  the example of a published message has a value in it
``set in FILE ...``      these files give it a value
``set by LIBRARY``       a library of ROS does
``default: why``         it is left at its default
"""

from __future__ import annotations

from typing import Dict

_FRAME = "used in nodes/inference/intake.py"
_NO_HEADER = """
    header.seq header.stamp header.frame_id | ignored: the newest message holds, whatever its stamp
"""

RECEIVED: Dict[str, str] = {
    "sensor_msgs/Image": f"""
        header.seq header.stamp header.frame_id | {_FRAME}
        height width encoding is_bigendian step data | used
    """,
    "sensor_msgs/CompressedImage": f"""
        header.seq header.stamp header.frame_id | {_FRAME}
        format data | used
    """,
    "sensor_msgs/CameraInfo": f"""
        header.seq | ignored: a message that is lost is followed by another
        header.stamp | {_FRAME}
        header.frame_id | ignored: that of the image counts
        height width distortion_model D K R P binning_x binning_y | used
        roi.x_offset roi.y_offset roi.height roi.width | used
        roi.do_rectify | ignored: image_geometry and image_proc do not read it; P is moved by the region as it is
    """,
    "sensor_msgs/PointCloud2": """
        header.seq | ignored: sweeps are told apart by their stamps and arrivals
        header.stamp header.frame_id | used in nodes/scene/agrnav_node.py nodes/inference/ranges.py
        height width fields.name fields.offset fields.datatype is_bigendian point_step row_step data | used
        fields.count | ignored: of a field with several values the first is at its offset
        is_dense | ignored: points that are no returns are told by their values
    """,
    "tf2_msgs/TFMessage": """
        transforms.header.seq | ignored: tf2 orders transforms by their stamps
        transforms.header.stamp transforms.header.frame_id transforms.child_frame_id | used
        transforms.transform.translation.x transforms.transform.translation.y transforms.transform.translation.z | used
        transforms.transform.rotation.x transforms.transform.rotation.y | used
        transforms.transform.rotation.z transforms.transform.rotation.w | used
    """,
    "geometry_msgs/PoseStamped": """
        header.seq header.stamp | ignored: a goal holds until another one, where its frame is when the sweep is taken
        header.frame_id pose.position.x pose.position.y pose.position.z | used
        pose.orientation.x pose.orientation.y pose.orientation.z pose.orientation.w | ignored: any heading will do
    """,
    "sensor_msgs/BatteryState": """
        header.seq header.stamp header.frame_id | ignored: the newest message holds, whatever its stamp
        voltage charge capacity design_capacity percentage | used
        temperature current cell_voltage cell_temperature | ignored: hours are those at the power of each mode
        power_supply_status power_supply_health power_supply_technology | ignored: they change nothing of what is left
        present | ignored: many drivers leave it false; a battery that says nothing else is told as not known
        location serial_number | ignored: a topic is of one battery
    """,
    "diagnostic_msgs/DiagnosticArray": """
        header.seq header.stamp header.frame_id | ignored: what is told is told when it comes
        status.level status.name status.message status.values.key status.values.value | used
        status.hardware_id | ignored: nodes are told apart by name
    """,
    "edge_offload_msgs/Latency": """
        header.seq header.frame_id frame_seq | ignored: frames are told apart by their stamps
        header.stamp camera model mode engine fallback_reason error | used
        mode_code | ignored: mode says the same
        total queue encode uplink compute_robot compute_server downlink decode | used
        clock_error overlap_ratio idle_robot idle_server bytes_up bytes_down round_trips | used
        connected link_round_trip deadline deadline_met emulated_slowdown energy energy_source | used
        clock_offset | used in nodes/monitor/bandwidth_monitor_node.py
    """,
    "edge_offload_msgs/Forecast": f"""
        {_NO_HEADER}
        task | used in nodes/manager/offload_manager_node.py
        mode latency error doubt covariance energy bytes_up bytes_down obstacle absent remedy | used
        deadline server_load uplink downlink link_error link_age | used
    """,
    "edge_offload_msgs/OffloadMode": f"""
        {_NO_HEADER}
        mode policy reason | used
        code | ignored: mode says the same
    """,
    "edge_offload_msgs/Bandwidth": f"""
        {_NO_HEADER}
        peer connected source uplink downlink uplink_error downlink_error round_trip samples age | used
        clock_offset clock_error | ignored: Latency has those of each frame
        wifi_interface wifi_signal wifi_rate | ignored: for people and bags; the transfers themselves tell the rate
    """,
    "edge_offload_msgs/Turn": """
        header.seq header.frame_id | ignored: turns have numbers of their own
        header.stamp number node state at_once nodes latency | used in nodes/inference/turns.py
        task | used in nodes/manager/turn_giving.py
        within | ignored: the manager times what it gives, and forecasts tell it of the rest
        reason | ignored: for people
    """,
    "edge_offload_msgs/Drop": """
        header.seq header.stamp header.frame_id task | ignored: the newest of a node holds
        node intercept slope slope_error local interval | used in nodes/manager/turn_giving.py
        drop staleness | ignored: the curve holds every comparison
    """,
    "edge_offload_msgs/PersonArray": """
        header.seq header.frame_id | ignored: positions name their own frame
        frame_seq model mode image_width image_height | ignored: Latency says the same of the frame
        header.stamp | used in nodes/people/follower_node.py nodes/monitor/run_recorder.py nodes/camera/camera_node.py
        result.origin people.id people.score people.x_min people.y_min people.x_max people.y_max | used
        people.observed | used in nodes/people/follower_node.py nodes/monitor/regress_node.py
        people.target people.position_source people.position_frame | used in nodes/people/follower_node.py
        people.position.x people.position.y people.position.z | used in nodes/people/follower_node.py
        people.position_covariance | ignored: the follower keeps a distance that is far above it
        people.keypoints.x people.keypoints.y people.keypoints.score | ignored: for other nodes
        people.velocity.x people.velocity.y people.velocity.z | ignored: the follower steers by where the target is
        result.seen result.expected_drop | ignored: for other nodes
    """,
    "edge_offload_msgs/ObjectArray": """
        header.seq header.frame_id | ignored: for other nodes
        header.stamp | used in nodes/monitor/run_recorder.py
        frame_seq model mode image_width image_height | ignored: Latency says the same of the frame
        objects.class_id objects.label objects.score | ignored: a run counts the objects
        objects.x_min objects.y_min objects.x_max objects.y_max | ignored: a run counts the objects
        objects.position_source objects.position_frame objects.position_covariance | ignored: for other nodes
        objects.position.x objects.position.y objects.position.z | ignored: for other nodes
    """,
    "edge_offload_msgs/SemanticGrid": """
        header.seq header.frame_id | ignored: a run counts labels, not places
        header.stamp | used in nodes/monitor/run_recorder.py nodes/monitor/regress_node.py
        origin.x origin.y origin.z voxel_size | ignored: a run counts labels, not places
        size_x size_y size_z labels encoding data result.origin | used
        result.seen result.expected_drop | ignored: for other nodes
    """,
    "edge_offload_msgs/Power": f"""
        {_NO_HEADER}
        host watts joules source sensor state | used
    """,
    "edge_offload_msgs/ServerStatus": f"""
        {_NO_HEADER}
        address device state robots queue_length load memory inferences refused failed | used
        version engine uptime robot_names gpu_load bytes_in bytes_out idle batches | ignored: for edge-offload status
        models.name models.inferences models.compute_mean models.compute_p99 | ignored: for edge-offload status
        promises.robot promises.model promises.bound promises.drop promises.interval | ignored: for edge-offload status
        promises.batch promises.late_share promises.turns promises.note | ignored: for edge-offload status
    """,
    "edge_offload_msgs/SetModeRequest": """
        mode | used in nodes/manager/offload_manager_node.py
    """,
}

_SEQ = "header.seq | default: rospy counts it itself"
_OF_FRAME = f"""
    {_SEQ}
    header.stamp header.frame_id | set
"""
_WHEN = f"""
    {_SEQ}
    header.frame_id | default: it is about no place
"""

PUBLISHED: Dict[str, str] = {
    "sensor_msgs/Image": f"""
        {_OF_FRAME}
        height width encoding step data | set
        is_bigendian | default: samples have one byte
    """,
    "sensor_msgs/CompressedImage": f"""
        {_OF_FRAME}
        format data | set
    """,
    "sensor_msgs/CameraInfo": """
        header.seq | default: rospy counts it itself
        header.stamp header.frame_id | set in nodes/camera/camera_node.py
        height width distortion_model D K R P | set
        binning_x binning_y roi.x_offset roi.y_offset roi.height roi.width | default: K and P are of the images as sent
        roi.do_rectify | default: there is no region
    """,
    "sensor_msgs/PointCloud2": f"""
        {_OF_FRAME}
        height width fields.name fields.offset fields.datatype fields.count point_step row_step data | set
        is_bigendian | default: the data is little-endian
        is_dense | set
    """,
    "tf2_msgs/TFMessage": """
        transforms.header.seq | default: rospy counts it itself
        transforms.header.stamp transforms.header.frame_id transforms.child_frame_id | set
        transforms.transform.translation.x transforms.transform.translation.y transforms.transform.translation.z | set
        transforms.transform.rotation.x transforms.transform.rotation.y | set
        transforms.transform.rotation.z transforms.transform.rotation.w | set
    """,
    "diagnostic_msgs/DiagnosticArray": """
        header.seq | default: rospy counts it itself
        header.stamp status.name | set by diagnostic_updater
        header.frame_id | default: it is about no place
        status.level status.message | set
        status.hardware_id | set in nodes/common/base.py
        status.values.key status.values.value | set
    """,
    "geometry_msgs/Twist": """
        linear.x angular.z | set in nodes/people/follower_node.py
        linear.y linear.z angular.x angular.y | default: robots with two driven wheels have no such motion
    """,
    "nav_msgs/OccupancyGrid": f"""
        {_OF_FRAME}
        info.map_load_time info.resolution info.width info.height data | set
        info.origin.position.x info.origin.position.y info.origin.position.z info.origin.orientation.w | set
        info.origin.orientation.x info.origin.orientation.y info.origin.orientation.z | default: along the frame's axes
    """,
    "nav_msgs/Path": f"""
        {_OF_FRAME}
        poses.header.seq | default: poses have no order of their own
        poses.header.stamp poses.header.frame_id | set
        poses.pose.position.x poses.pose.position.y poses.pose.position.z | set
        poses.pose.orientation.z poses.pose.orientation.w | set
        poses.pose.orientation.x poses.pose.orientation.y | default: the way is level
    """,
    "visualization_msgs/MarkerArray": """
        markers.header.seq | default: markers have no order
        markers.header.stamp markers.header.frame_id markers.ns markers.id markers.type | set
        markers.action | default: ADD is 0; DELETEALL comes before
        markers.pose.position.x markers.pose.position.y markers.pose.position.z markers.pose.orientation.w | set
        markers.pose.orientation.x markers.pose.orientation.y markers.pose.orientation.z | set
        markers.scale.x markers.scale.y markers.scale.z markers.lifetime markers.text | set
        markers.color.r markers.color.g markers.color.b markers.color.a | set
        markers.points.x markers.points.y markers.points.z | set
        markers.colors.r markers.colors.g markers.colors.b markers.colors.a | default: a marker has one colour
        markers.frame_locked | default: a frame that moves does not take along what was seen from it
        markers.mesh_resource markers.mesh_use_embedded_materials | default: there are no meshes
    """,
    "vision_msgs/Detection2DArray": """
        header.seq | default: rospy counts it itself
        header.stamp header.frame_id | set in nodes/inference/compose.py
        detections.header.seq | default: rospy counts it itself
        detections.header.stamp detections.header.frame_id | set in nodes/inference/compose.py
        detections.results.id detections.results.score | set in nodes/inference/vision.py
        detections.bbox.center.x detections.bbox.center.y | set in nodes/inference/vision.py
        detections.bbox.size_x detections.bbox.size_y | set in nodes/inference/vision.py
        detections.bbox.center.theta | default: boxes are along the axes of the image
        detections.results.pose.pose.position.x detections.results.pose.pose.position.y | default: boxes are flat
        detections.results.pose.pose.position.z detections.results.pose.covariance | default: boxes are flat
        detections.results.pose.pose.orientation.x detections.results.pose.pose.orientation.y | default: likewise
        detections.results.pose.pose.orientation.z detections.results.pose.pose.orientation.w | default: likewise
        detections.source_img.header.seq detections.source_img.header.stamp | default: the frame has its own topic
        detections.source_img.header.frame_id detections.source_img.height | default: the frame has its own topic
        detections.source_img.width detections.source_img.encoding | default: the frame has its own topic
        detections.source_img.is_bigendian detections.source_img.step | default: the frame has its own topic
        detections.source_img.data | default: the frame has its own topic
    """,
    "vision_msgs/Detection3DArray": f"""
        {_OF_FRAME}
        detections.header.seq | default: rospy counts it itself
        detections.header.stamp detections.header.frame_id detections.results.id detections.results.score | set
        detections.results.pose.pose.position.x detections.results.pose.pose.position.y | set
        detections.results.pose.pose.position.z detections.results.pose.covariance | set
        detections.results.pose.pose.orientation.x detections.results.pose.pose.orientation.y | default: unknown
        detections.results.pose.pose.orientation.z | default: unknown, as the covariance says
        detections.results.pose.pose.orientation.w | set
        detections.bbox.center.position.x detections.bbox.center.position.y detections.bbox.center.position.z | set
        detections.bbox.center.orientation.x detections.bbox.center.orientation.y | set
        detections.bbox.center.orientation.z detections.bbox.center.orientation.w | set
        detections.bbox.size.x detections.bbox.size.y | set
        detections.bbox.size.z | default: how deep an object is, is not measured
        detections.source_cloud.header.seq detections.source_cloud.header.stamp | default: clouds have their own topic
        detections.source_cloud.header.frame_id detections.source_cloud.height | default: clouds have their own topic
        detections.source_cloud.width detections.source_cloud.fields.name | default: clouds have their own topic
        detections.source_cloud.fields.offset detections.source_cloud.fields.datatype | default: likewise
        detections.source_cloud.fields.count detections.source_cloud.is_bigendian | default: likewise
        detections.source_cloud.point_step detections.source_cloud.row_step | default: likewise
        detections.source_cloud.data detections.source_cloud.is_dense | default: likewise
    """,
    "vision_msgs/VisionInfo": """
        header.seq header.stamp header.frame_id | default: it is about every frame
        method database_location | set in nodes/inference/vision.py
        database_version | default: labels change with the model only
    """,
    "edge_offload_msgs/Latency": f"""
        {_OF_FRAME}
        frame_seq camera model mode mode_code engine fallback_reason | set
        error | set in nodes/inference/offloaded.py
        total queue encode uplink compute_robot compute_server downlink decode clock_error | set
        overlap_ratio idle_robot idle_server bytes_up bytes_down round_trips emulated_slowdown deadline_met | set
        connected link_round_trip clock_offset | set in nodes/inference/compose.py
        deadline energy energy_source | set in nodes/inference/offloaded.py
    """,
    "edge_offload_msgs/Forecast": f"""
        {_OF_FRAME}
        task mode latency error doubt covariance energy bytes_up bytes_down obstacle absent remedy | set
        deadline server_load uplink downlink link_error link_age | set
    """,
    "edge_offload_msgs/OffloadMode": f"""
        {_WHEN}
        header.stamp | set
        mode code policy reason | set
    """,
    "edge_offload_msgs/Bandwidth": f"""
        {_WHEN}
        header.stamp peer connected source uplink downlink | set in nodes/monitor/bandwidth_monitor_node.py
        uplink_error downlink_error round_trip samples age | set in nodes/monitor/bandwidth_monitor_node.py
        clock_offset clock_error | set in nodes/monitor/bandwidth_monitor_node.py
        wifi_interface wifi_signal wifi_rate | set in nodes/monitor/bandwidth_monitor_node.py
    """,
    "edge_offload_msgs/Turn": """
        header.seq | default: rospy counts it itself
        header.stamp | set in nodes/manager/turn_giving.py
        header.frame_id | default: of a frame it is the frame's, else it is about no place
        number task node state within reason | set in nodes/manager/turn_giving.py nodes/inference/turns.py
        at_once nodes latency | set in nodes/manager/turn_giving.py
    """,
    "edge_offload_msgs/Drop": f"""
        {_WHEN}
        header.stamp task node intercept slope slope_error | set in nodes/inference/drops.py
        local drop staleness interval | set in nodes/inference/drops.py
    """,
    "edge_offload_msgs/PersonArray": f"""
        {_OF_FRAME}
        frame_seq model mode image_width image_height result.origin result.seen result.expected_drop | set
        people.id people.observed people.target people.score | set
        people.x_min people.y_min people.x_max people.y_max | set
        people.keypoints.x people.keypoints.y people.keypoints.score | set
        people.position_source people.position_frame people.position_covariance | set
        people.position.x people.position.y people.position.z | set
        people.velocity.x people.velocity.y people.velocity.z | set
    """,
    "edge_offload_msgs/ObjectArray": f"""
        {_OF_FRAME}
        frame_seq model mode image_width image_height | set
        objects.class_id objects.label objects.score | set
        objects.x_min objects.y_min objects.x_max objects.y_max | set
        objects.position_source objects.position_frame objects.position_covariance | set
        objects.position.x objects.position.y objects.position.z | set
    """,
    "edge_offload_msgs/SemanticGrid": f"""
        {_OF_FRAME}
        origin.x origin.y origin.z voxel_size size_x size_y size_z labels encoding data | set
        result.origin result.seen result.expected_drop | set
    """,
    "edge_offload_msgs/Power": f"""
        {_WHEN}
        header.stamp host watts joules source sensor state | set in nodes/monitor/power_node.py
    """,
    "edge_offload_msgs/ServerStatus": f"""
        {_WHEN}
        header.stamp address version device engine state | set
        uptime robots robot_names queue_length load gpu_load memory inferences refused failed bytes_in bytes_out | set
        models.name models.inferences models.compute_mean models.compute_p99 idle batches | set
        promises.robot promises.model promises.bound promises.drop promises.interval | set
        promises.batch promises.late_share promises.turns promises.note | set
    """,
    "edge_offload_msgs/SetModeResponse": """
        ok message | set in nodes/manager/offload_manager_node.py
    """,
}

DYNAMIC: Dict[str, Dict[str, str]] = {
    "nodes/inference/depth.py": {"Subscriber self.kind": "sensor_msgs/Image sensor_msgs/PointCloud2"},
    "nodes/inference/intake.py": {"Subscriber kind": "sensor_msgs/Image sensor_msgs/CompressedImage"},
    "nodes/monitor/run_recorder.py": {
        "Subscriber self._kind.message": "edge_offload_msgs/PersonArray edge_offload_msgs/ObjectArray "
        "edge_offload_msgs/SemanticGrid",
        # of frames the first bytes only, which are those of a header
        "Subscriber rospy.AnyMsg": "sensor_msgs/Image sensor_msgs/CompressedImage sensor_msgs/PointCloud2",
    },
    "nodes/monitor/regress_node.py": {
        "Subscriber self._kind.message": "edge_offload_msgs/PersonArray edge_offload_msgs/SemanticGrid",
        "Publisher kind": "sensor_msgs/Image sensor_msgs/CompressedImage",
        "read_messages": "sensor_msgs/Image sensor_msgs/CompressedImage sensor_msgs/CameraInfo sensor_msgs/PointCloud2 "
        "tf2_msgs/TFMessage",
    },
    "nodes/monitor/run_topics.py": {
        "Subscriber getattr(msg, topic.message)": "edge_offload_msgs/Latency edge_offload_msgs/PersonArray "
        "edge_offload_msgs/SemanticGrid edge_offload_msgs/OffloadMode edge_offload_msgs/Bandwidth "
        "edge_offload_msgs/Power edge_offload_msgs/ServerStatus"
    },
    # on behalf of nodes that are listed here
    "nodes/common/bags.py": {"read_messages": ""},
    "nodes/camera/bag.py": {"read_messages": "sensor_msgs/Image sensor_msgs/CompressedImage sensor_msgs/CameraInfo"},
    "nodes/lidar/sweeps.py": {"read_messages": "sensor_msgs/PointCloud2"},
    "dashboard/bag.py": {
        "read_messages": "edge_offload_msgs/Latency edge_offload_msgs/PersonArray edge_offload_msgs/SemanticGrid "
        "edge_offload_msgs/OffloadMode edge_offload_msgs/Bandwidth edge_offload_msgs/Power "
        "edge_offload_msgs/ServerStatus diagnostic_msgs/DiagnosticArray"
    },
}
"""Types of what the source does not name, by file and by how it is written there."""


def rows(text: str) -> Dict[str, str]:
    """Answers by field."""
    answers: Dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        names, _, answer = line.partition(" | ")
        for name in names.split():
            assert name not in answers, f"{name} has two answers"
            answers[name] = answer
    return answers
