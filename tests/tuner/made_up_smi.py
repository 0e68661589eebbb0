"""Management libraries of GPUs, made up: what NVML and amdsmi answer, with the names that their documentation gives."""

from types import SimpleNamespace

ADDRESS = "0000:63:00.0"
UUID = "5f3a2b10-0000-0000-0000-000000000001"


class TimeoutError_(Exception):
    """NVML's error for a wait without an event."""


class Nvml:
    """In place of the module `pynvml`, for one GPU; attributes are what it answers."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_AGGREGATE_ECC = 1, 0, 1
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
    nvmlEventTypeXidCriticalError = 8
    NVMLError_Timeout = TimeoutError_

    def __init__(self):
        self.clocks, self.reasons, self.temperature = [1980], 0x1, 40
        self.most, self.power, self.default_power = 1980, 700_000, 700_000
        self.processes, self.errors, self.xids = [1], [3, 0], []

    def nvmlInit(self):
        pass

    def nvmlSystemGetDriverVersion(self):
        return "590.1"

    def nvmlSystemGetCudaDriverVersion(self):
        return 13000

    def nvmlDeviceGetCount(self):
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):
        assert index == 0
        return f"GPU-{UUID}"

    def nvmlDeviceGetHandleByUUID(self, name):
        assert name == f"GPU-{UUID}"
        return name

    def nvmlDeviceGetUUID(self, gpu):
        return gpu

    def nvmlDeviceGetName(self, gpu):
        return "NVIDIA H200"

    def nvmlDeviceGetClockInfo(self, gpu, kind):
        assert kind == self.NVML_CLOCK_SM
        return self.clocks.pop(0) if len(self.clocks) > 1 else self.clocks[0]

    def nvmlDeviceGetMaxClockInfo(self, gpu, kind):
        return self.most

    def nvmlDeviceGetTemperature(self, gpu, kind):
        return self.temperature

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu):
        return self.reasons

    def nvmlDeviceGetMemoryInfo(self, gpu):
        return SimpleNamespace(free=139 << 30, total=140 << 30)

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu):
        return self.power

    def nvmlDeviceGetPowerManagementDefaultLimit(self, gpu):
        return self.default_power

    def nvmlDeviceGetComputeRunningProcesses(self, gpu):
        return [SimpleNamespace(pid=pid) for pid in self.processes]

    def nvmlDeviceGetMigMode(self, gpu):
        return [0, 0]

    def nvmlDeviceGetTotalEccErrors(self, gpu, kind, counter):
        assert counter == self.NVML_AGGREGATE_ECC
        return self.errors[kind]

    def nvmlEventSetCreate(self):
        return "events"

    def nvmlDeviceRegisterEvents(self, gpu, kinds, events):
        assert (kinds, events) == (self.nvmlEventTypeXidCriticalError, "events")

    def nvmlEventSetWait_v2(self, events, milliseconds):
        assert (events, milliseconds) == ("events", 0)
        if not self.xids:
            raise self.NVMLError_Timeout
        return SimpleNamespace(eventData=self.xids.pop(0))


class AmdSmi:
    """In place of the module `amdsmi`, for one MI300X; "N/A" is its answer for what a GPU does not have."""

    AmdSmiClkType = SimpleNamespace(GFX="gfx")
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hotspot")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def __init__(self):
        self.active = dict.fromkeys(("active_prochot_thrm", "active_ppt_pwr", "active_socket_thrm"), False)
        self.active |= {"active_vr_thrm": "N/A", "active_hbm_thrm": False, "active_low_utilization": True}
        self.partition = "SPX"

    def amdsmi_init(self):
        pass

    def amdsmi_get_processor_handles(self):
        return ["handle"]

    def amdsmi_get_processor_handle_from_bdf(self, address):
        assert address == ADDRESS
        return "handle"

    def amdsmi_get_gpu_driver_info(self, gpu):
        return {"driver_name": "amdgpu", "driver_version": "6.12.12", "driver_date": "N/A"}

    def amdsmi_get_gpu_asic_info(self, gpu):
        return {"market_name": "AMD Instinct MI300X OAM"}

    def amdsmi_get_gpu_device_uuid(self, gpu):
        return "abff74a1-0000-1000-80b2-000000000000"

    def amdsmi_get_gpu_device_bdf(self, gpu):
        return ADDRESS.upper()

    def amdsmi_get_clock_info(self, gpu, kind):
        assert kind == "gfx"
        return {"clk": 2100, "min_clk": 500, "max_clk": 2100, "clk_locked": False, "clk_deep_sleep": 0}

    def amdsmi_get_temp_metric(self, gpu, kind, metric):
        assert (kind, metric) == ("hotspot", "current")
        return 51

    def amdsmi_get_violation_status(self, gpu):
        return self.active

    def amdsmi_get_gpu_vram_usage(self, gpu):
        return {"vram_total": 196_592, "vram_used": 592}

    def amdsmi_get_power_cap_info(self, gpu):
        return {"power_cap": 750_000_000, "default_power_cap": 750_000_000, "max_power_cap": 750_000_000}

    def amdsmi_get_gpu_process_list(self, gpu):
        return [{"name": "python3", "pid": 7}, {"name": "N/A", "pid": 8}]

    def amdsmi_get_gpu_total_ecc_count(self, gpu):
        return {"correctable_count": 2, "uncorrectable_count": 0, "deferred_count": 0}

    def amdsmi_get_gpu_compute_partition(self, gpu):
        return self.partition

    def amdsmi_get_gpu_cache_info(self, gpu):
        sizes = ((1, 32, 304), (2, 4096, 8), (3, 262_144, 1))
        return {
            "cache": [
                {
                    "cache_level": level,
                    "cache_size": kib,
                    "num_cache_instance": count,
                    "cache_properties": ["DATA_CACHE"],
                }
                for level, kib, count in sizes
            ]
        }
