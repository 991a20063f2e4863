"""Writes scenes of the DGP for the tests, as published and as converted."""

import json

import numpy as np

from drive_files import world_from_body, write_picture

WIDTH, HEIGHT = 16, 12


def dgp_pose(matrix):
    from scipy.spatial.transform import Rotation

    x, y, z, w = Rotation.from_matrix(matrix[:3, :3]).as_quat()
    translation = dict(zip("xyz", matrix[:3, 3].tolist(), strict=True))
    return {"rotation": {"qw": w, "qx": x, "qy": y, "qz": z}, "translation": translation}


def write_dgp(folder, lidar=None, structured=False, **intrinsics):
    """A scene of two samples; returns the points of each in the lidar's frame."""
    lidar = np.eye(4) if lidar is None else lidar
    camera = np.eye(4)
    camera[:3] = [[0, 0, 1, 1.5], [-1, 0, 0, 0.2], [0, -1, 0, 1.6]]
    data, samples, clouds = [], [], []
    for frame in range(2):
        date = f"2464-11-12T01:04:1{frame}.5Z"
        points = np.random.default_rng(frame).uniform([-40, -40, 0], [40, 40, 4], (200, 3))
        clouds.append(points)
        values = np.concatenate([points, np.full((200, 1), 0.5)], axis=-1).astype(np.float32)
        if structured:
            values = np.rec.fromarrays(values.T, names="X,Y,Z,INTENSITY")
        (folder / "point_cloud" / "LIDAR").mkdir(parents=True, exist_ok=True)
        np.savez(folder / "point_cloud" / "LIDAR" / f"{frame}.npz", data=values)
        write_picture(folder / "rgb" / "CAMERA_01" / f"{frame}.png", WIDTH, HEIGHT)
        box = np.eye(4)
        box[:3, 3] = [12, 1, 1]
        (folder / "bounding_box_3d" / "LIDAR").mkdir(parents=True, exist_ok=True)
        (folder / "bounding_box_3d" / "LIDAR" / f"{frame}.json").write_text(
            json.dumps(
                {
                    "annotations": [
                        {
                            "class_id": 2,
                            "instance_id": 77,
                            "box": {"length": 4, "width": 2, "height": 1.5, "pose": dgp_pose(box)},
                        }
                    ]
                }
            )
        )
        vehicle = world_from_body(float(frame))
        entries = {
            "LIDAR": {
                "point_cloud": {
                    "filename": f"point_cloud/LIDAR/{frame}.npz",
                    "point_format": ["X", "Y", "Z", "INTENSITY"],
                    "annotations": {"1": f"bounding_box_3d/LIDAR/{frame}.json"},
                    "pose": dgp_pose(vehicle @ lidar),
                }
            },
            "CAMERA_01": {
                "image": {
                    "filename": f"rgb/CAMERA_01/{frame}.png",
                    "width": WIDTH,
                    "height": HEIGHT,
                    "pose": dgp_pose(vehicle @ camera),
                }
            },
            "RADAR": {"radar_point_cloud": {}},
        }
        keys = [f"{name}{frame}" for name in entries]
        data += [
            {"id": {"name": name, "timestamp": date}, "key": key, "datum": datum}
            for key, (name, datum) in zip(keys, entries.items(), strict=True)
        ]
        samples.append({"calibration_key": "c0", "datum_keys": keys})
    (folder / "calibration").mkdir(exist_ok=True)
    lens = {"fx": 20, "fy": 21, "cx": 7.5, "cy": 5.5, "skew": 0.0, **intrinsics}
    calibration = {
        "names": ["LIDAR", "CAMERA_01"],
        "extrinsics": [dgp_pose(lidar), dgp_pose(camera)],
        "intrinsics": [{"fx": 0, "fy": 0}, lens],
    }
    (folder / "calibration" / "c0.json").write_text(json.dumps(calibration))
    (folder / "ontology").mkdir(exist_ok=True)
    (folder / "ontology" / "o0.json").write_text(json.dumps({"items": [{"id": 2, "name": "Car"}]}))
    document = {"data": data, "samples": samples, "ontologies": {"1": "o0"}}
    (folder / "scene_c0ffee.json").write_text(json.dumps(document))
    return clouds


def write_scene(folder):
    random = np.random.default_rng(0)
    mount = np.eye(4)
    mount[:3] = [[0, 0, 1, 1.5], [-1, 0, 0, 0.2], [0, -1, 0, 1.6]]
    frames, clouds = [], []
    for frame in range(3):
        points = random.uniform([-60, -60, 0], [60, 60, 5], (300, 3)).astype(np.float32)
        clouds.append(points)
        (folder / "lidar").mkdir(parents=True, exist_ok=True)
        np.savez(
            folder / "lidar" / f"{frame}.npz",
            xyz=points,
            intensity=np.full(300, 0.5, np.float32),
        )
        write_picture(folder / "CAMERA_01" / f"{frame}.png", 16, 12)
        far = np.eye(4)
        far[:3, 3] = [5e6, -2e6, 100]
        box = np.eye(4)
        box[:3, 3] = [20, 1, 1]
        frames.append(
            {
                "timestamp": f"2464-11-12T01:04:1{frame}.027900Z",
                "lidar": f"lidar/{frame}.npz",
                "world_from_lidar": (far @ world_from_body(frame)).tolist(),
                "cameras": {
                    "CAMERA_01": {
                        "image": f"CAMERA_01/{frame}.png",
                        "timestamp": f"2464-11-12T01:04:1{frame}.000900Z",
                        "K": [[20, 0, 7.5], [0, 21, 5.5], [0, 0, 1]],
                        "world_from_camera": (
                            far @ world_from_body(frame - 0.027) @ mount
                        ).tolist(),
                        "vehicle_from_camera": mount.tolist(),
                    }
                },
                "boxes": [
                    {
                        "instance_id": 7,
                        "label": "Truck",
                        "size_lwh": [6, 2.5, 3],
                        "lidar_from_box": box.tolist(),
                    }
                ],
            }
        )
    document = {"width": 16, "height": 12, "frames": frames}
    (folder / "scene.json").write_text(json.dumps(document))
    return clouds
