// A library with the name and some functions of NVML. Its GPUs do what the file named by FAKE_NVML_SCRIPT says, which
// is read again when it changes. Each line of it is one of:
//
//     gpus NUMBER ..              the GPUs in NVML's order; NVML lists the GPUs that exist when it is initialised.
//     set GPU NAME VALUE          a value, such as `set 1 power 300000`.
//     fail GPU FUNCTION RESULT    the function returns this code, or hangs until the script changes; * is any.
//     handle GPU NUMBER           handles from before the last change of this number are lost.
//     mig GPU COUNT               number of MIG instances.
//     xid GPU CODE COUNT          number of Xid events so far.
//
// A GPU that is not in `gpus` any more is lost.

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { GPUS = 129, LINES = 512 };
enum { INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, NO_SPACE = 7, TIMED_OUT = 10, LOST = 15 };

typedef unsigned long long u64;

struct line {
    char what[8];
    char gpu[8];
    char name[48];
    char value[24];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct line lines[LINES];
static int line_count, present_count, listed_count, users;
static int present[GPUS], listed[GPUS];
static struct stat read_at;

static void read_script(void) {
    struct stat now;
    const char *path = getenv("FAKE_NVML_SCRIPT");
    if (stat(path, &now) != 0 ||
        (now.st_ino == read_at.st_ino && now.st_mtim.tv_sec == read_at.st_mtim.tv_sec &&
         now.st_mtim.tv_nsec == read_at.st_mtim.tv_nsec))
        return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    read_at = now;
    line_count = present_count = 0;
    char text[512];
    while (fgets(text, sizeof text, file)) {
        if (strncmp(text, "gpus", 4) == 0) {
            strtok(text, " \n");
            for (char *word; (word = strtok(NULL, " \n")) && present_count < GPUS - 1;)
                present[present_count++] = atoi(word);
        } else if (line_count < LINES) {
            struct line *line = &lines[line_count];
            memset(line, 0, sizeof *line);
            if (sscanf(text, "%7s %7s %47s %23s", line->what, line->gpu, line->name, line->value) >= 3)
                line_count++;
        }
    }
    fclose(file);
}

static int is(const char *pattern, const char *text) {
    return strcmp(pattern, "*") == 0 || strcmp(pattern, text) == 0;
}

static int is_in(const int *list, int count, int gpu) {
    for (int i = 0; i < count; i++)
        if (list[i] == gpu) return 1;
    return 0;
}

// The last line of this kind for a GPU and, if given, a name.
static struct line *find(const char *what, int gpu, const char *name) {
    char number[8];
    snprintf(number, sizeof number, "%d", gpu);
    for (int i = line_count - 1; i >= 0; i--)
        if (strcmp(lines[i].what, what) == 0 && is(lines[i].gpu, number) && (!name || is(lines[i].name, name)))
            return &lines[i];
    return NULL;
}

// The result of a function for a GPU, or 0. Waits while it hangs.
static int result(const char *function, int gpu) {
    for (;;) {
        pthread_mutex_lock(&lock);
        read_script();
        struct line *line = find("fail", gpu, function);
        int hangs = line && strcmp(line->value, "hang") == 0;
        int code = line ? atoi(line->value) : gpu && !is_in(present, present_count, gpu) ? LOST : 0;
        pthread_mutex_unlock(&lock);
        if (!hangs) return code;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

// The script may make the loading of the library hang.
__attribute__((constructor)) static void load(void) { result("load", 0); }

static long value(int gpu, const char *name, long usual) {
    pthread_mutex_lock(&lock);
    struct line *line = find("set", gpu, name);
    long found = line ? atol(line->value) : usual;
    pthread_mutex_unlock(&lock);
    return found;
}

static long number(const char *what, int gpu) {
    pthread_mutex_lock(&lock);
    struct line *line = find(what, gpu, NULL);
    long found = line ? atol(line->name) : 0;
    pthread_mutex_unlock(&lock);
    return found;
}

// A handle consists of the GPU, its handle number and, for a MIG instance, its index plus one.
static void *handle_of(int gpu, int instance) {
    return (void *)(unsigned long)(gpu | instance << 8 | number("handle", gpu) << 16);
}
static int gpu_of(void *device) { return (unsigned long)device & 255; }
static int instance_of(void *device) { return (unsigned long)device >> 8 & 255; }

static int call(const char *function, void *device) {
    int code = result(function, gpu_of(device));
    if (code == 0 && (long)((unsigned long)device >> 16) != number("handle", gpu_of(device))) return LOST;
    return code;
}
#define CALL(device) \
    int code = call(__func__, device); \
    if (code) return code
// A function that MIG instances do not have.
#define CALL_WHOLE(device) \
    CALL(device); \
    if (instance_of(device)) return UNSUPPORTED

int nvmlInit_v2(void) {
    int code = result(__func__, 0);
    if (code) return code;
    pthread_mutex_lock(&lock);
    if (users++ == 0) {
        listed_count = present_count;
        memcpy(listed, present, sizeof listed);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

int nvmlShutdown(void) {
    int code = result(__func__, 0);
    if (code) return code;
    pthread_mutex_lock(&lock);
    users--;
    pthread_mutex_unlock(&lock);
    return 0;
}

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    snprintf(text, length, "570.00");
    return result(__func__, 0);
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = listed_count;
    return result(__func__, 0);
}

static int open_gpu(const char *function, int gpu, void **device) {
    int code = result(function, gpu);
    *device = handle_of(gpu, 0);
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= (unsigned)listed_count) return INVALID;
    return open_gpu(__func__, listed[index], device);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
    unsigned gpu = 0;
    sscanf(id, "00000000:%x:00.0", &gpu);
    if (!is_in(listed, listed_count, gpu)) return NOT_FOUND;
    return open_gpu(__func__, gpu, device);
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    CALL(device);
    snprintf(text, length, "%s-00000000-0000-0000-%04d-%012d", instance_of(device) ? "MIG" : "GPU",
             instance_of(device), gpu_of(device));
    return 0;
}

int nvmlDeviceGetName(void *device, char *text, unsigned length) {
    CALL(device);
    snprintf(text, length, instance_of(device) ? "Fake MIG 1g.10gb" : "Fake");
    return 0;
}

struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci) {
    CALL(device);
    memset(pci, 0, sizeof *pci);
    pci->bus = gpu_of(device);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", gpu_of(device));
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    CALL_WHOLE(device);
    rates[0] = value(gpu_of(device), "busy", 50);
    rates[1] = value(gpu_of(device), "memory_busy", 25);
    return 0;
}

struct memory {
    unsigned version;
    u64 total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *memory) {
    CALL(device);
    memory->total = instance_of(device) ? 10000 : value(gpu_of(device), "memory", 80000);
    memory->used = instance_of(device) ? 1000 * instance_of(device) : 20000;
    memory->free = memory->total - memory->used;
    return 0;
}

int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *mhz) {
    CALL_WHOLE(device);
    *mhz = clock == 1 ? value(gpu_of(device), "sm_clock", 1410) : 1593;
    return 0;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    CALL_WHOLE(device);
    *milliwatts = value(gpu_of(device), "power", 300000);
    return 0;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    (void)sensor;
    CALL_WHOLE(device);
    *celsius = value(gpu_of(device), "temperature", 60);
    return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, u64 *reasons) {
    CALL_WHOLE(device);
    *reasons = value(gpu_of(device), "throttle", 0);
    return 0;
}

struct process {
    unsigned pid;
    u64 memory;
    unsigned gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes) {
    CALL(device);
    long pid = value(gpu_of(device), "pid", 0);
    if (pid && *count == 0) {
        *count = 1;
        return NO_SPACE;
    }
    *count = pid ? 1 : 0;
    if (pid) processes[0] = (struct process){.pid = pid, .memory = 5000};
    return 0;
}

struct busy {
    unsigned pid;
    u64 at_us;
    unsigned sm, memory, encoder, decoder;
};

int nvmlDeviceGetProcessUtilization(void *device, struct busy *samples, unsigned *count, u64 seen_us) {
    CALL_WHOLE(device);
    long pid = value(gpu_of(device), "pid", 0);
    if (!pid) return NOT_FOUND;
    if (!samples) {
        *count = 1;
        return NO_SPACE;
    }
    *count = 1;
    samples[0] = (struct busy){.pid = pid, .at_us = seen_us + 1, .sm = 40};
    return 0;
}

struct field {
    unsigned id, scope;
    long long at, latency;
    unsigned type;
    int result;
    u64 value;
};

int nvmlDeviceGetFieldValues(void *device, int count, struct field *fields) {
    CALL_WHOLE(device);
    for (int i = 0; i < count; i++) {
        char name[24];
        snprintf(name, sizeof name, "field%u", fields[i].id);
        long found = value(gpu_of(device), name, 0);
        fields[i].type = 3;
        fields[i].result = found < 0 ? UNSUPPORTED : 0;
        fields[i].value = found;
    }
    return 0;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    CALL_WHOLE(device);
    *current = *pending = number("mig", gpu_of(device)) > 0;
    return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
    CALL(device);
    *count = 7;
    return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **instance) {
    CALL_WHOLE(device);
    if (index >= number("mig", gpu_of(device))) return NOT_FOUND;
    *instance = handle_of(gpu_of(device), index + 1);
    return 0;
}

struct events {
    int registered[GPUS];
    long seen[GPUS];
};

static long xids(int gpu, u64 *xid) {
    pthread_mutex_lock(&lock);
    read_script();
    struct line *line = find("xid", gpu, NULL);
    long count = line ? atol(line->value) : 0;
    if (line) *xid = atol(line->name);
    pthread_mutex_unlock(&lock);
    return count;
}

int nvmlEventSetCreate(struct events **set) {
    *set = calloc(1, sizeof **set);
    return result(__func__, 0);
}

int nvmlEventSetFree(struct events *set) {
    free(set);
    return result(__func__, 0);
}

int nvmlDeviceRegisterEvents(void *device, u64 types, struct events *set) {
    CALL_WHOLE(device);
    if (!(types & 8)) return UNSUPPORTED;
    u64 xid = 0;
    set->registered[gpu_of(device)] = 1;
    set->seen[gpu_of(device)] = xids(gpu_of(device), &xid);
    return 0;
}

struct event {
    void *device;
    u64 type, data;
    unsigned gpu_instance, compute_instance;
};

int nvmlEventSetWait_v2(struct events *set, struct event *event, unsigned timeout_ms) {
    int code = result(__func__, 0);
    if (code) return code;
    for (int gpu = 1; gpu < GPUS; gpu++) {
        u64 xid = 0;
        if (set->registered[gpu] && xids(gpu, &xid) > set->seen[gpu]) {
            set->seen[gpu]++;
            *event = (struct event){.device = handle_of(gpu, 0), .type = 8, .data = xid};
            return 0;
        }
    }
    nanosleep(&(struct timespec){.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000}, NULL);
    return TIMED_OUT;
}
